// The packets as a Tofino has them in its hands: the headers of ../headers.p4, 64 lanes at a time, and what a packet
// takes along from one pass to the next.
#include "../headers.p4"

// One pass sees 64 lanes in two halves. A stateful ALU keeps a lane of each, and gives back one of the two.
#define HALF(X) \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) \
    X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
#define LANE_FIELD(i) bit<32> lane_##i;

header half_t {
    HALF(LANE_FIELD)
}

// In front of a packet between two passes, and between ingress and egress.
header pass_t {
    bit<8>  place;   // which pass comes next, of passes.p4; PLACE_FLOODED: none
    bit<8>  step;    // what it does with the lanes: STORE, ADD, FETCH (the right half), FETCH_LEFT
    bit<8>  outcome; // of the packet's contribution
    bit<16> row;     // of the registers of lanes
    bit<16> group;   // multicast group of the job
    @padding bit<7> unused;
    PortId_t port;   // that the packet came from
}

struct packet_t {
    pass_t     pass;
    ethernet_t ethernet;
    arp_t      arp;
    ipv4_t     ipv4;
    icmp_t     icmp;
    udp_t      udp;
    switchml_t switchml;
    missing_t  missing;
    half_t     left;
    half_t     right;
}

// What is known of a packet in its first pass; later ones need `step` alone.
struct known_t {
    bit<1>  is_new;         // this is the first pass
    bit<1>  is_summed;      // it is a job's
    bit<1>  is_well_formed; // its lengths and its size agree
    bool    is_damaged;     // the IPv4 header's checksum is wrong
    bit<8>  step;           // of this pass; the next one's is in the header
    bit<8>  pipe;           // where the next pass is; NO_PIPE: there is none
    bit<16> cell;           // of the counter: 32 times the worker, plus the outcome; set by slices, since of
                            // `cell | outcome` p4c 1.2.5.16 makes a read of a container that nothing writes
}

struct nothing_t {}

const bit<8> FETCH_LEFT = 4;
const bit<8> PLACE_FLOODED = 0xff;
const bit<8> NO_PIPE = 0xff;
