// The lanes of all slots: 32 stateful ALUs, each with a lane of the left and of the right half. An ALU has one output,
// so while it stores or adds both, the right one comes out; the left one takes another pass.

struct lanes_t {
    bit<32> left;
    bit<32> right;
}

control Lanes(inout bit<32> left, inout bit<32> right, in bit<8> step, in bit<16> row) {
    Register<lanes_t, bit<16>>(ROWS) sums;

    RegisterAction<lanes_t, bit<16>, bit<32>>(sums) store_lanes = {
        void apply(inout lanes_t lanes, out bit<32> result) {
            lanes.left = left;
            lanes.right = right;
            result = lanes.right;
        }
    };
    RegisterAction<lanes_t, bit<16>, bit<32>>(sums) add_lanes = {
        void apply(inout lanes_t lanes, out bit<32> result) {
            lanes.left = lanes.left + left;
            lanes.right = lanes.right + right;
            result = lanes.right;
        }
    };
    RegisterAction<lanes_t, bit<16>, bit<32>>(sums) fetch_right_lane = {
        void apply(inout lanes_t lanes, out bit<32> result) {
            result = lanes.right;
        }
    };
    RegisterAction<lanes_t, bit<16>, bit<32>>(sums) fetch_left_lane = {
        void apply(inout lanes_t lanes, out bit<32> result) {
            result = lanes.left;
        }
    };

    action store() {
        right = store_lanes.execute(row);
    }
    action add() {
        right = add_lanes.execute(row);
    }
    action fetch_right() {
        right = fetch_right_lane.execute(row);
    }
    action fetch_left() {
        left = fetch_left_lane.execute(row);
    }
    table steps {
        key = { step : exact; }
        actions = { store; add; fetch_right; fetch_left; @defaultonly NoAction; }
        const entries = {
            (bit<8>)STORE: store();
            (bit<8>)ADD: add();
            (bit<8>)FETCH: fetch_right();
            FETCH_LEFT: fetch_left();
        }
        const default_action = NoAction();
        size = 4;
    }
    apply {
        steps.apply();
    }
}

#define LANES(i) Lanes() lanes_##i;
#define APPLY_LANES(i) lanes_##i.apply(hdr.left.lane_##i, hdr.right.lane_##i, known.step, hdr.pass.row);

// The lanes of a packet; a half that is fetched joins its headers.
control Sums(inout packet_t hdr, in known_t known) {
    HALF(LANES)
    apply {
        if (known.step == FETCH_LEFT) {
            hdr.left.setValid();
        } else if (known.step == (bit<8>)FETCH) {
            hdr.right.setValid();
        }
        HALF(APPLY_LANES)
    }
}

// The greatest of a slot's exponents, as signed numbers.
control Maximum(inout bit<8> exponent, in bit<8> step, in bit<16> row) {
    Register<int<8>, bit<16>>(ROWS) maxima;

    RegisterAction<int<8>, bit<16>, int<8>>(maxima) store_exponent = {
        void apply(inout int<8> greatest, out int<8> result) {
            greatest = (int<8>)exponent;
            result = greatest;
        }
    };
    RegisterAction<int<8>, bit<16>, int<8>>(maxima) add_exponent = {
        void apply(inout int<8> greatest, out int<8> result) {
            greatest = max(greatest, (int<8>)exponent);
            result = greatest;
        }
    };
    RegisterAction<int<8>, bit<16>, int<8>>(maxima) fetch_exponent = {
        void apply(inout int<8> greatest, out int<8> result) {
            result = greatest;
        }
    };

    action store() {
        exponent = (bit<8>)store_exponent.execute(row);
    }
    action add() {
        exponent = (bit<8>)add_exponent.execute(row);
    }
    action fetch() {
        exponent = (bit<8>)fetch_exponent.execute(row);
    }
    table steps {
        key = { step : exact; }
        actions = { store; add; fetch; @defaultonly NoAction; }
        const entries = {
            (bit<8>)STORE: store();
            (bit<8>)ADD: add();
            (bit<8>)FETCH: fetch();
        }
        const default_action = NoAction();
        size = 4;
    }
    apply {
        steps.apply();
    }
}
