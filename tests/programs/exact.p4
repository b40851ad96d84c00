// SPDX-License-Identifier: Apache-2.0
// Exact-match tables: a key of two fields, a key that is no whole number of bytes, constant entries,
// actions with and without parameters, a default action that the control plane may change.
#include "ethernet.p4"

header tag_t {
    bit<4>  kind;
    bit<12> vlan;
}

struct headers_t {
    ethernet_t eth;
    tag_t      tag;
}

struct meta_t {
    bit<1> known;
}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.tag);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    action drop() {
        mark_to_drop(sm);
    }
    action send(bit<9> port) {
        sm.egress_spec = port;
    }
    action rewrite(bit<9> port, bit<48> src, bit<12> vlan) {
        sm.egress_spec = port;
        hdr.eth.src = src;
        hdr.tag.vlan = vlan;
    }
    action know() {
        meta.known = 1;
    }
    action set_kind(bit<4> kind) {
        hdr.tag.kind = kind;
    }

    table forward {
        key = {
            hdr.eth.dst: exact;
            hdr.tag.vlan: exact;
        }
        actions = { send; rewrite; drop; }
        size = 64;
        default_action = drop();
    }
    table kinds {
        key = { hdr.tag.kind: exact; }
        actions = { set_kind; know; NoAction; }
        const entries = {
            4w1: set_kind(15);
            4w2: know();
        }
        const default_action = NoAction();
    }

    apply {
        kinds.apply();
        forward.apply();
        if (meta.known == 1) {
            hdr.eth.type = 0x0b0e;
        }
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
