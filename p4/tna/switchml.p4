// SPDX-License-Identifier: Apache-2.0
// SwitchML on the Tofino Native Architecture: a switch that sums the packets of distributed training jobs by protocol 1
// (-DPROTOCOL=1) or 2 (-DPROTOCOL=2), with up to 256 lanes, and forwards everything else. ../README.md says what it
// leaves out of ../switchml.p4, and why.
#include <core.p4>
#include <tna.p4>

#ifndef ROWS
#define ROWS 16384 // versions of slots of all jobs together
#endif
#ifndef WORKERS
#define WORKERS 1024 // workers of all jobs together
#endif

#include "packets.p4"
#include "sums.p4"
#if PROTOCOL == 1
#include "rule_v1.p4"
#elif PROTOCOL == 2
#include "rule_v2.p4"
#else
#error "PROTOCOL is 1 or 2"
#endif
#include "passes.p4"
#include "parser.p4"

control SwitchIngress(inout packet_t hdr, inout known_t known, in ingress_intrinsic_metadata_t ig,
                      in ingress_intrinsic_metadata_from_parser_t ig_prsr,
                      inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr,
                      inout ingress_intrinsic_metadata_for_tm_t ig_tm) {
    Counter<bit<32>, bit<16>>(32 * WORKERS, CounterType_t.PACKETS_AND_BYTES) outcomes;
    Rule() rule;
    Sums() sums;
    Passes() passes;

    action drop() {
        ig_dprsr.drop_ctl = 1;
    }

    action own() {}
    table own_addresses {
        key = { hdr.ipv4.dst : exact; }
        actions = { own; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 64;
    }

    // The switch as a host.
    action send_back() {
        ig_tm.ucast_egress_port = ig.ingress_port;
        ig_tm.bypass_egress = 1;
    }
    action answer_arp(bit<48> mac) {
        bit<32> asked = hdr.arp.target;
        hdr.arp.operation = 2;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        hdr.arp.target = hdr.arp.sender;
        hdr.arp.sender_mac = mac;
        hdr.arp.sender = asked;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = mac;
        send_back();
    }
    table own_macs {
        key = {
            hdr.arp.target : exact;
            hdr.arp.operation : exact;
        }
        actions = { answer_arp; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 64;
    }
    // The header's first word falls by 0x0800, so the ones' complement of the sum grows by it.
    action answer_echo(bit<16> growth) {
        bit<48> mac = hdr.ethernet.dst;
        bit<32> address = hdr.ipv4.dst;
        hdr.icmp.type = 0;
        hdr.icmp.checksum = hdr.icmp.checksum + growth;
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = address;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = mac;
        send_back();
    }
    table echoes {
        key = {
            hdr.icmp.type : exact;
            hdr.icmp.code : exact;
            hdr.icmp.checksum : ternary;
        }
        actions = { answer_echo; drop; }
        const entries = {
            (8, 0, 0xf800 &&& 0xf800): answer_echo(0x0801); // with the carry
            (8, 0, _): answer_echo(0x0800);
        }
        const default_action = drop();
        size = 2;
    }

    // An Ethernet switch; the control plane knows where the stations are.
    action forward(PortId_t port) {
        ig_tm.ucast_egress_port = port;
        ig_tm.bypass_egress = 1;
    }
    action flood() {
        hdr.pass.setValid();
        hdr.pass.place = PLACE_FLOODED;
        ig_tm.mcast_grp_a = 1; // a node for each port, whose level 1 exclusion ID is the port's number
        ig_tm.level1_exclusion_id = (bit<16>)ig.ingress_port; // level 2's table ends at 287, ports at 455
    }
    table stations {
        key = { hdr.ethernet.dst : exact; }
        actions = { forward; @defaultonly flood; }
        const default_action = flood();
        size = 4096;
    }

    apply {
        if (known.is_new == 1) {
            if (hdr.arp.isValid()) {
                if (!own_macs.apply().hit) {
                    stations.apply();
                }
            } else if (!hdr.ipv4.isValid()) {
                stations.apply();
            } else if (!own_addresses.apply().hit) {
                stations.apply();
            } else if (known.is_damaged && hdr.ipv4.checksum != 0) {
                drop();
            } else if (hdr.switchml.isValid()) {
                rule.apply(hdr, known);
                outcomes.count(known.cell);
                if (known.is_summed == 1) {
                    hdr.pass.port = ig.ingress_port;
                } else {
                    drop();
                }
            } else if (hdr.icmp.isValid()) {
                echoes.apply();
            } else {
                drop();
            }
        } else {
            sums.apply(hdr, known);
        }
        if (known.is_summed == 1) {
            passes.apply(hdr, known, ig_dprsr, ig_tm);
        }
    }
}

control SwitchEgress(inout packet_t hdr, inout nothing_t known, in egress_intrinsic_metadata_t eg,
                     in egress_intrinsic_metadata_from_parser_t eg_prsr,
                     inout egress_intrinsic_metadata_for_deparser_t eg_dprsr,
                     inout egress_intrinsic_metadata_for_output_port_t eg_port) {
    bit<32> address;
    bit<16> port;

    action freshen() {
        hdr.ipv4.tos = 0;
        hdr.ipv4.id = 0;
        hdr.ipv4.flags = 0;
        hdr.ipv4.ttl = 64;
        hdr.udp.checksum = 0;
    }
    action to_sender() {
        bit<48> mac = hdr.ethernet.dst;
        bit<32> own = hdr.ipv4.dst;
        bit<16> own_port = hdr.udp.dst;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = mac;
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = own;
        hdr.udp.dst = hdr.udp.src;
        hdr.udp.src = own_port;
        freshen();
    }
    action receiver(bit<48> mac, bit<32> address_, bit<16> port_) {
        hdr.ethernet.src = hdr.ethernet.dst;
        hdr.ethernet.dst = mac;
        hdr.ipv4.src = hdr.ipv4.dst;
        hdr.ipv4.dst = address_;
        hdr.udp.src = hdr.udp.dst;
        hdr.udp.dst = port_;
        freshen();
    }
    // In protocol 1 results go to the UDP port that the last packet came from.
    action v1_receiver(bit<48> mac, bit<32> address_) {
        bit<16> own_port = hdr.udp.dst;
        hdr.ethernet.src = hdr.ethernet.dst;
        hdr.ethernet.dst = mac;
        hdr.ipv4.src = hdr.ipv4.dst;
        hdr.ipv4.dst = address_;
        hdr.udp.dst = hdr.udp.src;
        hdr.udp.src = own_port;
        freshen();
    }
    table receivers {
        key = { eg.egress_rid : exact; }
        actions = { receiver; v1_receiver; @defaultonly NoAction; }
        const default_action = NoAction();
        size = WORKERS;
    }

    apply {
        if (hdr.udp.isValid()) {
            if (hdr.pass.outcome == (bit<8>)COMPLETED) {
                receivers.apply();
            } else {
                to_sender();
            }
        }
    }
}

Pipeline(IngressParser(), SwitchIngress(), IngressDeparser(), EgressParser(), SwitchEgress(), EgressDeparser()) pipe;

Switch(pipe) main;
