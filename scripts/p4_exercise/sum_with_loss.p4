// The solution of docs/tutorials/p4.md: sum.p4 with SwitchML's rule for lost packets (Sapio et al., NSDI 2021,
// algorithm 3). A bitmap ignores a number that arrives twice; a sum stays in its slot while the workers use the slot's
// other version, so that whoever did not get it can ask again.
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
    bit<8>  version;              // 0 or 1, in turns
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
    register<bit<32>>(512) sums;
    register<bit<8>>(512) counts;
    register<bit<8>>(512) seen;   // a bit for each worker

    apply {
        mark_to_drop(sm);
        if (hdr.number.isValid() && hdr.number.worker < WORKERS) {
            bit<32> slot = (bit<32>)(hdr.number.version[0:0] ++ hdr.number.slot);
            bit<32> other = slot ^ 256;
            bit<8> me = 8w1 << hdr.number.worker;
            bit<32> sum;
            bit<8> count;
            bit<8> here;
            bit<8> there;
            sums.read(sum, slot);
            counts.read(count, slot);
            seen.read(here, slot);
            seen.read(there, other);

            if (here & me == 0) {
                if (count == WORKERS) {             // complete, so this is the next sum
                    sum = 0;
                    count = 0;
                }
                sum = sum + hdr.number.value;
                count = count + 1;
                sums.write(slot, sum);
                counts.write(slot, count);
                seen.write(slot, here | me);
                seen.write(other, there & ~me);     // whoever comes here has the sum of the other version
                if (count == WORKERS) {
                    hdr.number.value = sum;
                    sm.mcast_grp = ALL_WORKERS;
                }
            } else if (count == WORKERS) {          // sent again: the result was lost
                hdr.number.value = sum;
                sm.egress_spec = sm.ingress_port;
            }
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
