// SPDX-License-Identifier: Apache-2.0
// Aggregation of 64 32-bit lanes, 2048 bits to a word. Written by generate_agg.py, which says what the program does.
#include "ethernet.p4"

header agg_t {
    bit<16> slot;
    bit<16> sender;
    bit<16> everybody;
    bit<16> group;
}

header data_t {
    bit<2048> w0;
}

struct headers_t {
    ethernet_t eth;
    agg_t      agg;
    data_t     data;
}

struct meta_t {}

#include "plain.p4"

const bit<64>   LOW_2  = 0x7fffffff7fffffff;
const bit<128>  LOW_4  = LOW_2 ++ LOW_2;
const bit<256>  LOW_8  = LOW_4 ++ LOW_4;
const bit<512>  LOW_16 = LOW_8 ++ LOW_8;
const bit<1024> LOW_32 = LOW_16 ++ LOW_16;
const bit<2048> LOW    = LOW_32 ++ LOW_32;
const bit<2048> TOP    = ~LOW;

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        transition select(hdr.eth.type) {
            0x88b5: agg;
            default: accept;
        }
    }
    state agg {
        packet.extract(hdr.agg);
        packet.extract(hdr.data);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    register<bit<16>>(256) senders;
    register<bit<2048>>(256) sum_w0;

    action store() {
        bit<32> slot = (bit<32>)hdr.agg.slot;
        sum_w0.write(slot, hdr.data.w0);
    }
    action add() {
        bit<32> slot = (bit<32>)hdr.agg.slot;
        bit<2048> old_w0;
        sum_w0.read(old_w0, slot);
        hdr.data.w0 = ((hdr.data.w0 & LOW) + (old_w0 & LOW)) ^ ((hdr.data.w0 ^ old_w0) & TOP);
        sum_w0.write(slot, hdr.data.w0);
    }
    action deliver() {
        sm.mcast_grp = hdr.agg.group;
        sm.egress_spec = sm.ingress_port;
    }
    action drop() {
        mark_to_drop(sm);
    }

    apply {
        if (hdr.data.isValid()) {
            bit<16> seen;
            senders.read(seen, (bit<32>)hdr.agg.slot);
            if ((seen & hdr.agg.sender) != 0) {
                drop();
            } else {
                if (seen == 0) {
                    store();
                } else {
                    add();
                }
                seen = seen | hdr.agg.sender;
                if (seen == hdr.agg.everybody) {
                    seen = 0;
                    deliver();
                } else {
                    drop();
                }
                senders.write((bit<32>)hdr.agg.slot, seen);
            }
        } else {
            drop();
        }
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
