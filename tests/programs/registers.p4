// SPDX-License-Identifier: Apache-2.0
// Registers: read, add, write; widths below, at and above 64 bits; an index out of range changes nothing.
// An int<W> register gives its value back without its sign on BMv2: `was_negative` stays 0 for it, whereas a bit<W>
// register that is cast to int<W> compares right.
#include "ethernet.p4"

header work_t {
    bit<32>  index;
    bit<32>  value;
    bit<5>   small;
    bit<3>   flags;
    bit<136> wide;
}

struct headers_t {
    ethernet_t eth;
    work_t     work;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.work);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    register<bit<32>>(16) sums;
    register<bit<5>>(16) smalls;
    register<bit<136>>(16) wides;
    register<int<32>>(16) signed;
    register<bit<32>>(16) cast;

    apply {
        sm.egress_spec = sm.ingress_port;

        bit<32> sum = 0xeeee;
        sums.read(sum, hdr.work.index);
        sum = sum + hdr.work.value;
        sums.write(hdr.work.index, sum);

        bit<5> small;
        smalls.read(small, hdr.work.index & 15);
        small = small + hdr.work.small;
        smalls.write(hdr.work.index & 15, small);

        bit<136> wide;
        wides.read(wide, hdr.work.index & 15);
        wide = wide + hdr.work.wide;
        wides.write(hdr.work.index & 15, wide);

        int<32> before;
        bit<32> raw;
        signed.read(before, hdr.work.index & 15);
        cast.read(raw, hdr.work.index & 15);
        bit<1> was_negative = 0;
        if (before < 0) {
            was_negative = 1;
        }
        bit<1> cast_negative = 0;
        if ((int<32>)raw < 0) {
            cast_negative = 1;
        }
        signed.write(hdr.work.index & 15, (int<32>)hdr.work.value);
        cast.write(hdr.work.index & 15, hdr.work.value);

        hdr.work.value = sum;
        hdr.work.small = small;
        hdr.work.wide = wide;
        hdr.work.flags = was_negative ++ cast_negative ++ 1w0;
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
