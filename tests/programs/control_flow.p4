// SPDX-License-Identifier: Apache-2.0
// Control flow on a table's result: hit and miss, switch on the action that ran, switch on a value, nested ifs in an action.
#include "ethernet.p4"

header flow_t {
    bit<16> id;
    bit<8>  kind;
    bit<8>  path;
    bit<16> level;
}

struct headers_t {
    ethernet_t eth;
    flow_t     flow;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.flow);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    action red() {}
    action green(bit<16> level) {
        if (level > 100) {
            if (hdr.flow.id[0:0] == 1) {
                hdr.flow.level = level;
            } else {
                hdr.flow.level = level + 1;
            }
        } else if (level > 10) {
            hdr.flow.level = 10;
        } else {
            hdr.flow.level = hdr.flow.level | 0x8000;
        }
    }
    action blue() {}

    table colours {
        key = { hdr.flow.id: exact; }
        actions = { red; green; blue; }
        size = 64;
        default_action = blue();
    }
    table present {
        key = { hdr.flow.kind: exact; }
        actions = { NoAction; }
        size = 64;
        default_action = NoAction();
    }

    apply {
        sm.egress_spec = sm.ingress_port;
        switch (colours.apply().action_run) {
            red: {
                hdr.flow.path = 1;
            }
            green: {
                hdr.flow.path = 2;
            }
            default: {
                hdr.flow.path = 3;
            }
        }
        if (present.apply().hit) {
            hdr.flow.path = hdr.flow.path | 0x10;
        } else {
            hdr.flow.path = hdr.flow.path | 0x20;
        }
        switch (hdr.flow.kind) {
            1:
            2: {
                hdr.eth.type = 0x0012;
            }
            3: {
                hdr.eth.type = 0x0003;
            }
            default: {
                hdr.eth.type = 0xffff;
            }
        }
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
