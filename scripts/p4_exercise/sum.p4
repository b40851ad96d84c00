// A switch that sums: three workers each send a number to a slot, and when the third arrives, all three get the sum.
// It works as long as no packet is lost: docs/tutorials/p4.md says what goes wrong then, and how SwitchML avoids it.
#include <core.p4>
#include <v1model.p4>

const bit<16> NUMBER = 0x88B5;    // the EtherType that IEEE 802 leaves for experiments
const bit<8> WORKERS = 3;
const bit<16> ALL_WORKERS = 1;    // the multicast group, which the control plane sets up

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header number_t {
    bit<8>  worker;               // 0, 1, 2
    bit<8>  version;              // 0 or 1; not looked at yet
    bit<8>  slot;
    bit<32> value;
}

struct headers_t {
    ethernet_t ethernet;
    number_t   number;
}

struct metadata_t {}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            NUMBER: number;
            default: accept;
        }
    }
    state number {
        packet.extract(hdr.number);
        transition accept;
    }
}

control Sum(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    register<bit<32>>(256) sums;
    register<bit<8>>(256) counts;

    apply {
        mark_to_drop(sm);
        if (hdr.number.isValid()) {
            bit<32> slot = (bit<32>)hdr.number.slot;
            bit<32> sum;
            bit<8> count;
            sums.read(sum, slot);
            counts.read(count, slot);

            sum = sum + hdr.number.value;
            count = count + 1;
            if (count == WORKERS) {
                hdr.number.value = sum;
                sm.mcast_grp = ALL_WORKERS;
                sum = 0;
                count = 0;
            }

            sums.write(slot, sum);
            counts.write(slot, count);
        }
    }
}

control NoVerify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control NoEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {}
}

control NoCompute(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(Parse(), NoVerify(), Sum(), NoEgress(), NoCompute(), Deparse()) main;
