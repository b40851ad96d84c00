// SPDX-License-Identifier: Apache-2.0
// Wide fields: 2048-bit values are added, masked, shifted, compared, kept in a register and sliced.
#include "ethernet.p4"

header wide_t {
    bit<8>    slot;
    bit<8>    smaller;
    bit<32>   slice;
    bit<2048> value;
}

struct headers_t {
    ethernet_t eth;
    wide_t     wide;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.wide);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    register<bit<2048>>(4) kept;

    apply {
        sm.egress_spec = sm.ingress_port;
        bit<2048> old;
        bit<32> index = (bit<32>)hdr.wide.slot & 3;
        kept.read(old, index);
        kept.write(index, hdr.wide.value);
        hdr.wide.smaller = (old < hdr.wide.value) ? 8w1 : 8w0;
        hdr.wide.slice = hdr.wide.value[1055:1024];
        bit<2048> sum = old + hdr.wide.value;
        hdr.wide.value = (sum ^ (old >> 31)) - (hdr.wide.value << 9);
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
