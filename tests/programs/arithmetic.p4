// SPDX-License-Identifier: Apache-2.0
// Arithmetic: every operator on signed and unsigned fields of several widths, casts, slices, concatenation, shifts by a
// constant and by a field, comparisons, the conditional operator.
#include "ethernet.p4"

header in_t {
    bit<32> a;
    bit<32> b;
    int<16> p;
    int<16> q;
    bit<7>  s;
    bit<1>  flag;
    bit<72> w;
    bit<72> x;
}

header out_t {
    bit<32> add;
    bit<32> sub;
    bit<32> mul;
    bit<32> band;
    bit<32> bor;
    bit<32> bxor;
    bit<32> bnot;
    bit<32> neg;
    bit<32> shl;
    bit<32> shr;
    bit<32> shl_field;
    bit<32> shr_field;
    int<16> sadd;
    int<16> ssub;
    int<16> smul;
    int<16> sneg;
    int<16> sshr;
    int<16> sshr_field;
    int<32> widened;
    bit<8>  narrowed;
    bit<16> sliced;
    bit<64> joined;
    bit<72> wadd;
    bit<72> wsub;
    bit<72> wmul;
    bit<72> wshl;
    bit<72> wshr;
    bit<32> chosen;
    bit<16> divided;
    bit<16> remainder;
    bit<16> compared;
}

struct headers_t {
    ethernet_t eth;
    in_t       in_;
    out_t      o;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.in_);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = sm.ingress_port;
        hdr.o.setValid();
        hdr.o.add = hdr.in_.a + hdr.in_.b;
        hdr.o.sub = hdr.in_.a - hdr.in_.b;
        hdr.o.mul = hdr.in_.a * hdr.in_.b;
        hdr.o.band = hdr.in_.a & hdr.in_.b;
        hdr.o.bor = hdr.in_.a | hdr.in_.b;
        hdr.o.bxor = hdr.in_.a ^ hdr.in_.b;
        hdr.o.bnot = ~hdr.in_.a;
        hdr.o.neg = -hdr.in_.a;
        hdr.o.shl = hdr.in_.a << 7;
        hdr.o.shr = hdr.in_.a >> 7;
        hdr.o.shl_field = hdr.in_.a << hdr.in_.s;
        hdr.o.shr_field = hdr.in_.a >> hdr.in_.s;
        hdr.o.sadd = hdr.in_.p + hdr.in_.q;
        hdr.o.ssub = hdr.in_.p - hdr.in_.q;
        hdr.o.smul = hdr.in_.p * hdr.in_.q;
        hdr.o.sneg = -hdr.in_.p;
        hdr.o.sshr = hdr.in_.p >> 3;
        hdr.o.sshr_field = hdr.in_.p >> hdr.in_.s;
        hdr.o.widened = (int<32>)hdr.in_.p;
        hdr.o.narrowed = (bit<8>)hdr.in_.a;
        hdr.o.sliced = hdr.in_.a[23:8];
        hdr.o.joined = hdr.in_.a[15:0] ++ hdr.in_.b ++ hdr.in_.a[31:16];
        hdr.o.wadd = hdr.in_.w + hdr.in_.x;
        hdr.o.wsub = hdr.in_.w - hdr.in_.x;
        hdr.o.wmul = hdr.in_.w * hdr.in_.x;
        hdr.o.wshl = hdr.in_.w << hdr.in_.s;
        hdr.o.wshr = hdr.in_.w >> hdr.in_.s;
        hdr.o.chosen = (hdr.in_.flag == 1 && hdr.in_.a > hdr.in_.b) ? hdr.in_.a : hdr.in_.b;
        hdr.o.divided = 16w50000 / 7;
        hdr.o.remainder = 16w50000 % 7;
        hdr.o.compared = 0;
        if (hdr.in_.a < hdr.in_.b) {
            hdr.o.compared[0:0] = 1;
        }
        if (hdr.in_.a <= hdr.in_.b) {
            hdr.o.compared[1:1] = 1;
        }
        if (hdr.in_.p < hdr.in_.q) {
            hdr.o.compared[2:2] = 1;
        }
        if (hdr.in_.p >= hdr.in_.q) {
            hdr.o.compared[3:3] = 1;
        }
        if (hdr.in_.w > hdr.in_.x || hdr.in_.w == 0) {
            hdr.o.compared[4:4] = 1;
        }
        if (hdr.in_.a != hdr.in_.b && !(hdr.in_.p == hdr.in_.q)) {
            hdr.o.compared[5:5] = 1;
        }
        hdr.o.compared[15:8] = hdr.in_.a[7:0];
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
