// SPDX-License-Identifier: Apache-2.0
// Queue metadata: priority in, depths, times and queue number out; in the packet that leaves, so that a test can read them.
#include "ethernet.p4"

header queue_t {
    bit<16> port;
    bit<8>  priority;
    bit<8>  egress_port;
    bit<32> enq_timestamp;
    bit<24> enq_qdepth;
    bit<32> deq_timedelta;
    bit<24> deq_qdepth;
    bit<48> ingress_time;
    bit<48> egress_time;
}

struct headers_t {
    ethernet_t eth;
    queue_t    queue;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.queue);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = (bit<9>)hdr.queue.port;
        sm.priority = (bit<3>)hdr.queue.priority;
        hdr.queue.ingress_time = sm.ingress_global_timestamp;
    }
}

control MyEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        hdr.queue.egress_port = (bit<8>)sm.egress_port;
        hdr.queue.enq_timestamp = sm.enq_timestamp;
        hdr.queue.enq_qdepth = (bit<24>)sm.enq_qdepth;
        hdr.queue.deq_timedelta = sm.deq_timedelta;
        hdr.queue.deq_qdepth = (bit<24>)sm.deq_qdepth;
        hdr.queue.egress_time = sm.egress_global_timestamp;
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), MyEgress(), NoCompute(), EmitAll()) main;
