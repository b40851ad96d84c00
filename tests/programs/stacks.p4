// SPDX-License-Identifier: Apache-2.0
// Header stacks: parsed in a loop, overflow, push_front, pop_front, indexed access, lastIndex, copying an element.
// ethernet.type tells what to do: 1 push, 2 pop, 3 push two, 4 pop two, 5 swap the outer two, anything else nothing.
#include "ethernet.p4"

header label_t {
    bit<20> label;
    bit<3>  class;
    bit<1>  bottom;
    bit<8>  ttl;
}

struct headers_t {
    ethernet_t eth;
    label_t[4] labels;
}

struct meta_t {
    bit<8> last;
}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        transition labels;
    }
    state labels {
        packet.extract(hdr.labels.next);
        meta.last = (bit<8>)hdr.labels.lastIndex;
        transition select(hdr.labels.last.bottom) {
            0: labels;
            1: accept;
        }
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = sm.ingress_port;
        if (hdr.eth.type == 1) {
            hdr.labels.push_front(1);
            hdr.labels[0].setValid();
            hdr.labels[0].label = 0xabcde;
            hdr.labels[0].ttl = 64;
        } else if (hdr.eth.type == 2) {
            hdr.labels.pop_front(1);
        } else if (hdr.eth.type == 3) {
            hdr.labels.push_front(2);
        } else if (hdr.eth.type == 4) {
            hdr.labels.pop_front(2);
        } else if (hdr.eth.type == 5) {
            label_t outer = hdr.labels[0];
            hdr.labels[0] = hdr.labels[1];
            hdr.labels[1] = outer;
        }
        if (hdr.labels[0].isValid()) {
            hdr.labels[0].class = 7;
        }
        hdr.eth.src[7:0] = meta.last;
        if (sm.parser_error == error.StackOutOfBounds) {
            hdr.eth.src[15:8] = 0xee;
        }
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
