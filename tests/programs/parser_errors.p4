// SPDX-License-Identifier: Apache-2.0
// Parser errors: a packet that is too short, verify with an error of the program's own, no matching select; none of
// them drops the packet. Ingress writes which error it saw, and which headers were there.
#include "ethernet.p4"

error {
    BadVersion,
    BadLength
}

header first_t {
    bit<4>  version;
    bit<4>  length;
    bit<16> next;
}

header second_t {
    bit<32> value;
}

header report_t {
    bit<8> error_code;
    bit<8> valid;
}

struct headers_t {
    report_t   report;
    ethernet_t eth;
    first_t    first;
    second_t   second;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.first);
        verify(hdr.first.version == 4, error.BadVersion);
        verify(hdr.first.length >= 5, error.BadLength);
        transition select(hdr.first.next) {
            0: accept;
            1: second;
            0x0100 &&& 0xff00: second;
        }
    }
    state second {
        packet.extract(hdr.second);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = sm.ingress_port;
        hdr.report.setValid();
        hdr.report.error_code = 0xff;
        if (sm.parser_error == error.NoError) {
            hdr.report.error_code = 0;
        } else if (sm.parser_error == error.PacketTooShort) {
            hdr.report.error_code = 1;
        } else if (sm.parser_error == error.NoMatch) {
            hdr.report.error_code = 2;
        } else if (sm.parser_error == error.BadVersion) {
            hdr.report.error_code = 3;
        } else if (sm.parser_error == error.BadLength) {
            hdr.report.error_code = 4;
        }
        if (hdr.eth.isValid()) {
            hdr.report.valid = hdr.report.valid | 1;
        }
        if (hdr.first.isValid()) {
            hdr.report.valid = hdr.report.valid | 2;
        }
        if (hdr.second.isValid()) {
            hdr.report.valid = hdr.report.valid | 4;
        }
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
