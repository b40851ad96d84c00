// SPDX-License-Identifier: Apache-2.0
// lookahead in a select and into a field, advance by a constant and by a field, a select on several values.
#include "ethernet.p4"

header tlv_t {
    bit<8> kind;
    bit<8> length;
}

header found_t {
    bit<16> value;
}

header end_t {
    bit<8>  kind;
    bit<24> peeked;
}

struct headers_t {
    ethernet_t eth;
    tlv_t      tlv;
    found_t    found;
    end_t      end;
}

struct meta_t {
    bit<24> peeked;
}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        meta.peeked = packet.lookahead<bit<24>>();
        transition options;
    }
    state options {
        transition select(packet.lookahead<bit<8>>(), hdr.eth.type[3:0]) {
            (0, _): end;
            (1, _): pad;
            (5, 0 .. 3): wanted;
            (0x80 &&& 0x80, _): end;
            default: other;
        }
    }
    state pad {
        packet.advance(8);
        transition options;
    }
    state wanted {
        packet.extract(hdr.tlv);
        packet.extract(hdr.found);
        transition options;
    }
    state other {
        tlv_t ahead = packet.lookahead<tlv_t>();
        packet.advance(16 + 8 * (bit<32>)ahead.length);
        transition options;
    }
    state end {
        packet.extract(hdr.end);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = sm.ingress_port;
        if (sm.parser_error != error.NoError) {
            hdr.eth.type = 0xffff;
        }
        if (hdr.end.isValid()) {
            hdr.end.peeked = meta.peeked;
        }
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
