// The packets: headers as they are on the wire, and what the pipeline knows of a packet besides.
#include "words.p4"

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header arp_t { // Ethernet and IPv4
    bit<16> hardware;
    bit<16> protocol;
    bit<8>  hardware_length;
    bit<8>  protocol_length;
    bit<16> operation;
    bit<48> sender_mac;
    bit<32> sender;
    bit<48> target_mac;
    bit<32> target;
}

header ipv4_t {
    bit<4>  version;
    bit<4>  ihl;
    bit<8>  tos;
    bit<16> length;
    bit<16> id;
    bit<3>  flags;
    bit<13> offset;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

header icmp_t {
    bit<8>  type;
    bit<8>  code;
    bit<16> checksum;
}

header udp_t {
    bit<16> src;
    bit<16> dst;
    bit<16> length;
    bit<16> checksum;
}

// docs/protocol.md. The names are those of protocol 2; protocol 1 has in their place:
header switchml_t {
    bit<4>  kind;  // msg_type
    bit<1>  r;     // unused
    bit<3>  size;
    bit<8>  ahead; // job_number
    bit<32> seq;   // tsi
    bit<16> tag;   // pool_index
    bit<8>  need;  // e0
    bit<8>  used;  // e1; in a result of protocol 2: flags
}

// The payload: 256 bytes, and the 768 that follow in packets of 1024.
header first_t {
    FIRST_WORDS(WORD_FIELD)
}
#ifdef REST_WORDS
header rest_t {
    REST_WORDS(WORD_FIELD)
}
#endif

// Before the data of a sparse packet: what its sender has next, for 1, 2, 4 or 8 columns. An addressed packet has the
// first word alone: reach, root, op and ahead, 8 bits each.
header word_1_t {
    bit<32> w0;
}
header word_2_t {
    bit<32> w1;
}
header word_4_t {
    bit<32> w2;
    bit<32> w3;
}
header word_8_t {
    bit<32> w4;
    bit<32> w5;
    bit<32> w6;
    bit<32> w7;
}
header padding_t { // in place of data
    bit<2048> zeros;
    bit<2048> more_zeros;
}

// What follows the payload of a dense partial sum, which one switch sends to another. Other partial sums have their flags
// in front of the number of columns.
header partial_t {
    bit<8> flags; // OVERFLOW, MIXED
    bit<8> unused;
}

// The payload of a wait packet: rank r is bit r mod 8 of byte r div 8.
header missing_t {
    bit<8>   ranks_0;
    bit<8>   ranks_8;
    bit<8>   ranks_16;
    bit<8>   ranks_24;
    bit<224> no_ranks;
}

struct headers_t {
    ethernet_t ethernet;
    arp_t      arp;
    ipv4_t     ipv4;
    icmp_t     icmp;
    udp_t      udp;
    switchml_t switchml;
    word_1_t   word_1;
    word_2_t   word_2;
    word_4_t   word_4;
    word_8_t   word_8;
    first_t    first;
#ifdef REST_WORDS
    rest_t     rest;
#endif
    padding_t  padding;
    partial_t  partial;
    missing_t  missing;
}

// What the entry of its sender says of a packet's job; README.md explains each.
struct job_t {
    bit<1>  is_v1;
    bit<3>  tree; // HAS_ABOVE, FROM_BELOW, FROM_ABOVE
    bit<1>  has_deadline;
    bit<16> worker;
    bit<16> first;
    bit<32> me;
    bit<32> everybody;
    bit<32> others;
    bit<32> generation;
    bit<32> base;
    bit<32> slots;
    bit<32> origin;
    bit<16> tag;
    bit<4>  kind;
    bit<3>  size;
    bit<16> group;
}

// One version of a slot, as it stands in two registers.
struct slot_t {
    bit<32> row;
    bit<32> other_row;
    bit<32> generation;
    bit<32> other_generation;
    bit<32> epoch;         // protocol 1: count
    bit<32> missing;       // protocol 1: the bitmap of those who are not missing
    bit<32> other_epoch;
    bit<32> other_missing;
    bit<8>  need;
    bit<8>  ahead;
    bit<8>  used;
    bit<4>  kind;
    bit<4>  flags;
    bit<8>  before_ahead;  // as it was when the packet came
    bit<32> packet_epoch;  // rule_v2.p4 says what these two are
    bit<32> packet_before;
}

struct meta_t {
    bit<3>  size;         // of the payload that was parsed; 0: none
    bit<32> target;       // whom the packet is for, by IPv4 address
    bit<1>  is_ours;      // the switch itself
    bit<48> mac;          // the switch's address
    bit<1>  is_rewritten; // the IPv4 header needs a new checksum
    bit<1>  is_flooded;
    bit<1>  is_lost;      // by the drop simulator
    bit<1>  has_words;    // the packet is sparse or addressed; its slot may be otherwise
    bit<1>  words_parsed; // all of those that its columns need
    bit<1>  has_data;
    bit<2>  reach;        // of the result that leaves: who gets it or, if it is addressed, its data
    bit<16> root;         // and from or to whom, by worker's number
    bit<32> root_bit;     // the same as a rank's bit, in trees
    bit<1>  to_switch;    // the copy is for another switch of the tree,
    bit<32> behind;       // and these are the ranks behind it, seen from here
    bit<4>  flags_below;  // of a sparse or addressed partial sum
    bit<1>  is_expiry;    // the packet is to end its round
    bit<32> without;      // the ranks that the round has ended without
    bit<8>  late;         // LATE if the sender is one of them, else 0
    bit<3>  step;         // what to do with the lanes
    bit<4>  outcome;
    job_t   job;
    slot_t  slot;
}

const bit<16> TYPE_IPV4 = 0x0800;
const bit<16> TYPE_ARP  = 0x0806;
const bit<8>  IP_ICMP   = 1;
const bit<8>  IP_UDP    = 17;

const bit<16> PORTS      = 0xbee0; // 48864 and the 15 after it
const bit<16> PORTS_MASK = 0xfff0;

const bit<3>  SIZE_256  = 1;
const bit<3>  SIZE_1024 = 3;
const bit<3>  SPARSE    = 4; // bit of the size; alone: no data
const bit<3>  SIZE_PADDED = 6; // 512 bytes of padding in place of data
const bit<16> LENGTH_256  = 8 + 10 + 256; // in the UDP header
const bit<16> LENGTH_1024 = 8 + 10 + 1024;
const bit<16> LENGTH_WAIT = 8 + 10 + 32;

const bit<3>  SIZE_PARTIAL = 4; // added to the size of a dense partial sum
const bit<16> LENGTH_PARTIAL = 2; // added to its length
const bit<8>  PARTIAL = 0x80; // in front of the number of columns of any other; below it, the flags

const bit<4> KIND_V1 = 1;
const bit<4> KIND_INT32 = 8; // a contribution; 9 int16, 10 int8
const bit<4> KIND_INT16 = 9;
const bit<4> KIND_INT8 = 10;
const bit<4> KIND_RESULT = 4; // bit of a contribution's kind that makes it a result's
const bit<4> KIND_EXPIRY = 11;
const bit<4> KIND_WAIT = 15;

const bit<4> OVERFLOW = 1;
const bit<4> MIXED = 2;
const bit<4> KEPT = 4; // never on the wire: the slot has the result from the switch above
const bit<4> ENDED_EARLY = 8; // PARTIAL on the wire: the round ended without some ranks
const bit<8> LATE = 16; // never in a slot

// Where a switch is in its job's tree, seen from a packet. 0: the switch is alone, or the packet a worker's to the root.
const bit<3> HAS_ABOVE = 1;  // there is a switch above; the packet comes from below
const bit<3> FROM_BELOW = 2; // the packet comes from a switch below
const bit<3> FROM_ABOVE = 4; // the packet comes from the switch above

// What to do with the lanes; 0 is nothing.
const bit<3> STORE = 1;
const bit<3> ADD = 2;
const bit<3> FETCH = 3;
const bit<3> COMBINE = 4; // by an op other than the sum

// In the word of an addressed packet.
const bit<2> REACH_ALL = 0; // of 8 bits there
const bit<2> REACH_ROOT = 1;
const bit<2> REACH_OTHERS = 2;
const bit<2> REACH_THOSE_IN = 3; // never in a packet: the result goes to the ranks whose values are in it, alone
const bit<8> OP_SUM = 0;
const bit<8> OP_MAX32 = 1;
const bit<8> OP_MAX64 = 2;
const bit<8> OP_OR = 3;
const bit<8> OP_XOR = 4;
const bit<8> ADDRESSED = 0; // where a sparse packet has its columns
const bit<16> LENGTH_CUT = 8 + 10 + 4;
const bit<16> LENGTH_PADDING = 512;

// What came of a packet. 16 is added where it was a retransmission of protocol 2.
const bit<4> CONSUMED = 0;
const bit<4> COMPLETED = 1; // 2: with OVERFLOW, 3: MIXED, 4: both
const bit<4> ANSWERED = 5;
const bit<4> DUPLICATE = 6;
const bit<4> WAITED = 7;
const bit<4> STALE = 8;
const bit<4> REFUSED_WINDOW = 9;
const bit<4> REFUSED_TAG = 10;
const bit<4> REFUSED_FORMAT = 11;
const bit<4> PASSED_UP = 12; // the partial sum was sent again to the switch above
const bit<4> LEFT_OUT = 13; // in egress: a copy of a result, which its receiver does not get as it is not in it
