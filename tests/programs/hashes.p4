// SPDX-License-Identifier: Apache-2.0
// Every hash algorithm of v1model that BMv2 has, over fields that are no whole number of bytes; each into its own field.
// The last two take a base and a small maximum.
#include "ethernet.p4"

header input_t {
    bit<32> a;
    bit<12> b;
    bit<4>  c;
    bit<16> d;
}

header output_t {
    bit<32> crc32;
    bit<32> crc32_custom;
    bit<16> crc16;
    bit<16> crc16_custom;
    bit<64> identity;
    bit<16> csum16;
    bit<16> xor16;
    bit<16> bounded;
    bit<8>  small;
}

struct headers_t {
    ethernet_t eth;
    input_t    input;
    output_t   output;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.input);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = sm.ingress_port;
        hdr.output.setValid();
        hash(hdr.output.crc32, HashAlgorithm.crc32, 32w0,
             { hdr.input.a, hdr.input.b, hdr.input.c, hdr.input.d }, 33w0x1_0000_0000);
        hash(hdr.output.crc32_custom, HashAlgorithm.crc32_custom, 32w0,
             { hdr.input.a, hdr.input.b, hdr.input.c, hdr.input.d }, 33w0x1_0000_0000);
        hash(hdr.output.crc16, HashAlgorithm.crc16, 16w0,
             { hdr.input.a, hdr.input.b, hdr.input.c, hdr.input.d }, 17w0x1_0000);
        hash(hdr.output.crc16_custom, HashAlgorithm.crc16_custom, 16w0,
             { hdr.input.a, hdr.input.b, hdr.input.c, hdr.input.d }, 17w0x1_0000);
        hash(hdr.output.identity, HashAlgorithm.identity, 64w0,
             { hdr.input.a, hdr.input.b, hdr.input.c, hdr.input.d }, 65w0x1_0000_0000_0000_0000);
        hash(hdr.output.csum16, HashAlgorithm.csum16, 16w0,
             { hdr.input.a, hdr.input.b, hdr.input.c, hdr.input.d }, 17w0x1_0000);
        hash(hdr.output.xor16, HashAlgorithm.xor16, 16w0,
             { hdr.input.a, hdr.input.b, hdr.input.c, hdr.input.d }, 17w0x1_0000);
        hash(hdr.output.bounded, HashAlgorithm.crc32, 16w1000, { hdr.input.b, hdr.input.a }, 16w37);
        hash(hdr.output.small, HashAlgorithm.crc16, 8w5, { hdr.input.b }, 8w3);
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
