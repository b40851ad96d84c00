// SPDX-License-Identifier: Apache-2.0
// Saturating addition and subtraction, signed and unsigned, 8 to 136 bits wide.
#include "ethernet.p4"

header sat_t {
    bit<8>   a8;
    bit<8>   b8;
    bit<8>   plus8;
    bit<8>   minus8;
    int<8>   sa8;
    int<8>   sb8;
    int<8>   splus8;
    int<8>   sminus8;
    int<32>  sa32;
    int<32>  sb32;
    int<32>  splus32;
    int<32>  sminus32;
    bit<64>  a64;
    bit<64>  b64;
    bit<64>  plus64;
    bit<64>  minus64;
    bit<136> a136;
    bit<136> b136;
    bit<136> plus136;
    bit<136> minus136;
}

struct headers_t {
    ethernet_t eth;
    sat_t      sat;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.sat);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = sm.ingress_port;
        hdr.sat.plus8 = hdr.sat.a8 |+| hdr.sat.b8;
        hdr.sat.minus8 = hdr.sat.a8 |-| hdr.sat.b8;
        hdr.sat.splus8 = hdr.sat.sa8 |+| hdr.sat.sb8;
        hdr.sat.sminus8 = hdr.sat.sa8 |-| hdr.sat.sb8;
        hdr.sat.splus32 = hdr.sat.sa32 |+| hdr.sat.sb32;
        hdr.sat.sminus32 = hdr.sat.sa32 |-| hdr.sat.sb32;
        hdr.sat.plus64 = hdr.sat.a64 |+| hdr.sat.b64;
        hdr.sat.minus64 = hdr.sat.a64 |-| hdr.sat.b64;
        hdr.sat.plus136 = hdr.sat.a136 |+| hdr.sat.b136;
        hdr.sat.minus136 = hdr.sat.a136 |-| hdr.sat.b136;
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
