// SPDX-License-Identifier: Apache-2.0
// Multicast: groups of ports with replication ids; the copy that would go back is dropped in egress unless asked for.
// mark_to_drop cancels a group that was set before it, a group that is set afterwards wins.
#include "ethernet.p4"

header group_t {
    bit<16> group;
    bit<8>  mode;
    bit<8>  instance;
    bit<16> rid;
    bit<16> port;
}

struct headers_t {
    ethernet_t eth;
    group_t    group;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.group);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        if (hdr.group.mode == 1) {
            mark_to_drop(sm);
            sm.mcast_grp = hdr.group.group;
        } else if (hdr.group.mode == 2) {
            sm.mcast_grp = hdr.group.group;
            mark_to_drop(sm);
        } else {
            sm.egress_spec = sm.ingress_port;
            sm.mcast_grp = hdr.group.group;
        }
    }
}

control MyEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        hdr.group.rid = sm.egress_rid;
        hdr.group.port = (bit<16>)sm.egress_port;
        hdr.group.instance = (bit<8>)sm.instance_type;
        if (hdr.group.mode != 3 && sm.instance_type == 5 && sm.egress_port == sm.ingress_port) {
            mark_to_drop(sm);
        }
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), MyEgress(), NoCompute(), EmitAll()) main;
