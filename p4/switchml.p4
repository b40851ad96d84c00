// SPDX-License-Identifier: Apache-2.0
// SwitchML on v1model: a switch that sums the packets of distributed training jobs, and forwards everything else.
// README.md says how it works and what a control plane puts into it.
#include <core.p4>
#include <v1model.p4>

#ifndef ROWS
#define ROWS 65536 // versions of slots of all jobs together
#endif
#ifndef WORKERS
#define WORKERS 1024 // workers of all jobs together
#endif

#include "headers.p4"
#include "parser.p4"
#include "checksums.p4"
#include "loss.p4"
#include "responder.p4"
#include "forwarding.p4"
#include "aggregation.p4"
#include "addressed.p4"

control SwitchIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    LossIn() loss_in;
    Aggregation() aggregation;
    Responder() responder;
    Forwarding() forwarding;

    @name(".own") action own(bit<48> mac) {
        meta.is_ours = 1;
        meta.mac = mac;
    }
    @name(".own_addresses") table own_addresses {
        key = { meta.target : exact; }
        actions = { own; NoAction; }
        default_action = NoAction();
        size = 64;
    }

    apply {
        loss_in.apply(hdr, meta, sm);
        if (meta.is_lost == 1 || !hdr.ethernet.isValid()) { // simple_switch has old bytes in a header that is not there
            mark_to_drop(sm);
        } else {
            own_addresses.apply();
            if (meta.is_ours == 0) {
                forwarding.apply(hdr, meta, sm);
            } else if (sm.checksum_error == 1) {
                mark_to_drop(sm);
            } else if (hdr.udp.isValid() && (hdr.udp.dst & PORTS_MASK) == PORTS) {
                aggregation.apply(hdr, meta, sm);
            } else {
                responder.apply(hdr, meta, sm);
            }
        }
    }
}

control SwitchEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    Cut() cut;
    LeaveOut() leave_out;
    LossOut() loss_out;

    @name(".receiver") action receiver(bit<48> mac, bit<32> address, bit<16> port) {
        hdr.ethernet.dst = mac;
        hdr.ipv4.dst = address;
        hdr.udp.dst = port;
    }
    @name(".switch_receiver") action switch_receiver(bit<48> mac, bit<32> address, bit<16> port, bit<32> behind) {
        receiver(mac, address, port);
        meta.to_switch = 1;
        meta.behind = behind;
    }
    // In protocol 1 results go to the UDP port that the last packet came from.
    @name(".v1_receiver") action v1_receiver(bit<48> mac, bit<32> address) {
        hdr.ethernet.dst = mac;
        hdr.ipv4.dst = address;
    }
    @name(".receivers") table receivers {
        key = { sm.egress_rid : exact; }
        actions = { receiver; switch_receiver; v1_receiver; NoAction; }
        default_action = NoAction();
        size = WORKERS;
    }

    apply {
        if (sm.egress_rid != 0) { // a result's copy for one worker, whose number this is
            receivers.apply();
        }
        if (meta.reach != REACH_ALL) {
            if (meta.reach == REACH_THOSE_IN) {
                leave_out.apply(meta, sm);
            } else {
                cut.apply(hdr, meta, sm);
            }
        }
        if (meta.is_flooded == 1 && sm.egress_port == sm.ingress_port) {
            mark_to_drop(sm);
        } else {
            loss_out.apply(hdr, meta, sm);
        }
    }
}

V1Switch(Parse(), VerifyIpv4(), SwitchIngress(), SwitchEgress(), ComputeIpv4(), Deparse()) main;
