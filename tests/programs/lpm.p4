// SPDX-License-Identifier: Apache-2.0
// Longest-prefix match, alone and together with an exact key, on widths that are and are not whole bytes.
#include "ethernet.p4"

header route_t {
    bit<8>   vrf;
    bit<32>  v4;
    bit<128> v6;
    bit<12>  odd;
    bit<4>   seen;
}

struct headers_t {
    ethernet_t eth;
    route_t    route;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.route);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    action send(bit<9> port) {
        sm.egress_spec = port;
    }
    action mark(bit<4> bits) {
        hdr.route.seen = hdr.route.seen | bits;
    }

    table v4 {
        key = {
            hdr.route.vrf: exact;
            hdr.route.v4: lpm;
        }
        actions = { send; NoAction; }
        size = 64;
        default_action = NoAction();
    }
    table v6 {
        key = { hdr.route.v6: lpm; }
        actions = { mark; NoAction; }
        size = 64;
        default_action = NoAction();
    }
    table odd {
        key = { hdr.route.odd: lpm; }
        actions = { mark; NoAction; }
        size = 64;
        default_action = NoAction();
    }

    apply {
        sm.egress_spec = sm.ingress_port;
        v4.apply();
        v6.apply();
        odd.apply();
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
