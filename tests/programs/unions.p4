// SPDX-License-Identifier: Apache-2.0
// Header unions: parsed by type, at most one member valid, setValid of one invalidates the other, emitted as one.
#include "ethernet.p4"

header short_t {
    bit<16> value;
}

header long_t {
    bit<64> value;
}

header_union either_t {
    short_t s;
    long_t  l;
}

header last_t {
    bit<8> what;
}

struct headers_t {
    ethernet_t eth;
    either_t   either;
    last_t     last;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        transition select(hdr.eth.type[7:0]) {
            1: short;
            2: long;
            default: last;
        }
    }
    state short {
        packet.extract(hdr.either.s);
        transition last;
    }
    state long {
        packet.extract(hdr.either.l);
        transition last;
    }
    state last {
        packet.extract(hdr.last);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = sm.ingress_port;
        if (hdr.eth.type[15:8] == 1) {
            hdr.either.l.setValid();
            hdr.either.l.value = 0x0123456789abcdef;
        } else if (hdr.eth.type[15:8] == 2) {
            hdr.either.s.setValid();
            hdr.either.s.value = 0xbeef;
        } else if (hdr.eth.type[15:8] == 3) {
            hdr.either.s.setInvalid();
        }
        bit<2> valid = 0;
        if (hdr.either.s.isValid()) {
            valid[0:0] = 1;
        }
        if (hdr.either.l.isValid()) {
            valid[1:1] = 1;
        }
        hdr.last.what = (bit<8>)valid;
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
