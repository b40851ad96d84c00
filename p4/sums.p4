// The lanes of all slots, and what happens to them: a packet's are stored, added or otherwise combined, or fetched into
// it.
//
// Lanes are added a word at a time: all bits but the top one of each lane, so that no carry leaves it, then the top
// bits without carry. A sum overflowed where its sign differs from those of both summands. In the same way, the top bit
// of a difference tells which of two unsigned numbers is greater.

#define SUM_REGISTER(i) register<bit<WORD_BITS>>(ROWS) sum_##i;

#define STORE_WORD(i, word) sum_##i.write(meta.slot.row, word);
#define FETCH_WORD(i, word) sum_##i.read(word, meta.slot.row);
#define ADD_WORD(i, word) \
    sum_##i.read(old, meta.slot.row); \
    sum = ((old & low) + (word & low)) ^ ((old ^ word) & top); \
    wrong = wrong | ((old ^ sum) & (word ^ sum)); \
    word = sum; \
    sum_##i.write(meta.slot.row, sum);

#define GREATER_WORD(i, word) \
    sum_##i.read(old, meta.slot.row); \
    take = ((old & ~word) | (~(old ^ word) & ((old | top) - (word & low)))) & top; \
    take = take | (take - (take >> shift)); \
    word = (old & take) | (word & ~take); \
    sum_##i.write(meta.slot.row, word);
#define UNITE_WORD(i, word) \
    sum_##i.read(old, meta.slot.row); \
    word = (old | word) & ~(old & word & never_both); \
    sum_##i.write(meta.slot.row, word);

#define STORE_FIRST(i) STORE_WORD(i, hdr.first.w##i)
#define FETCH_FIRST(i) FETCH_WORD(i, hdr.first.w##i)
#define ADD_FIRST(i) ADD_WORD(i, hdr.first.w##i)
#define GREATER_FIRST(i) GREATER_WORD(i, hdr.first.w##i)
#define UNITE_FIRST(i) UNITE_WORD(i, hdr.first.w##i)
#define STORE_REST(i) STORE_WORD(i, hdr.rest.w##i)
#define FETCH_REST(i) FETCH_WORD(i, hdr.rest.w##i)
#define ADD_REST(i) ADD_WORD(i, hdr.rest.w##i)
#define GREATER_REST(i) GREATER_WORD(i, hdr.rest.w##i)
#define UNITE_REST(i) UNITE_WORD(i, hdr.rest.w##i)

control Sums(inout headers_t hdr, inout meta_t meta) {
    FIRST_WORDS(SUM_REGISTER)
#ifdef REST_WORDS
    REST_WORDS(SUM_REGISTER)
#endif

    bit<WORD_BITS> top;
    bit<WORD_BITS> low;
    bit<WORD_BITS> wrong;

    action lanes_of(bit<WORD_BITS> top_bits) {
        top = top_bits;
        low = ~top_bits;
        wrong = 0;
    }
    action store_first() {
        FIRST_WORDS(STORE_FIRST)
    }
    action fetch_first() {
        FIRST_WORDS(FETCH_FIRST)
    }
    action add_first() {
        bit<WORD_BITS> old;
        bit<WORD_BITS> sum;
        FIRST_WORDS(ADD_FIRST)
    }
#ifdef REST_WORDS
    action store_rest() {
        REST_WORDS(STORE_REST)
    }
    action fetch_rest() {
        REST_WORDS(FETCH_REST)
    }
    action add_rest() {
        bit<WORD_BITS> old;
        bit<WORD_BITS> sum;
        REST_WORDS(ADD_REST)
    }
#endif

#ifndef REGISTER_PER_LANE
    bit<8> shift;
    bit<WORD_BITS> never_both;

    action numbers_of(bit<WORD_BITS> top_bits, bit<8> top_bit) {
        top = top_bits;
        low = ~top_bits;
        shift = top_bit;
    }
    action greater() {
        bit<WORD_BITS> old;
        bit<WORD_BITS> take;
        FIRST_WORDS(GREATER_FIRST)
    }
    action greater_rest() {
        bit<WORD_BITS> old;
        bit<WORD_BITS> take;
        REST_WORDS(GREATER_REST)
    }
    action unite() {
        bit<WORD_BITS> old;
        FIRST_WORDS(UNITE_FIRST)
    }
    action unite_rest() {
        bit<WORD_BITS> old;
        REST_WORDS(UNITE_REST)
    }
#endif

    apply {
        if (meta.step == ADD) {
            bit<2> wire = meta.slot.kind[1:0]; // the other bits say nothing of the lanes
            if (wire == KIND_INT16[1:0]) {
                lanes_of(TOP16);
            } else if (wire == KIND_INT8[1:0]) {
                lanes_of(TOP8);
            } else {
                lanes_of(TOP32);
            }
            add_first();
#ifdef REST_WORDS
            if (meta.size == SIZE_1024) {
                add_rest();
            }
#endif
            if ((wrong & top) != 0) {
                meta.slot.flags = meta.slot.flags | OVERFLOW;
            }
        } else if (meta.step == STORE) {
            store_first();
#ifdef REST_WORDS
            if (meta.size == SIZE_1024) {
                store_rest();
            }
#endif
        } else if (meta.step == FETCH) {
            fetch_first();
#ifdef REST_WORDS
            if (meta.size == SIZE_1024) {
                fetch_rest();
            }
#endif
#ifndef REGISTER_PER_LANE
        } else if (meta.step == COMBINE) {
            bit<8> op = hdr.word_1.w0[15:8];
            if (op == OP_MAX32 || op == OP_MAX64) {
                if (op == OP_MAX32) {
                    numbers_of(TOP32, 31);
                } else {
                    numbers_of(TOP64, 63);
                }
                greater();
                if (meta.size == SIZE_1024) {
                    greater_rest();
                }
            } else {
                never_both = 0;
                if (op == OP_XOR) {
                    never_both = ~never_both;
                }
                unite();
                if (meta.size == SIZE_1024) {
                    unite_rest();
                }
            }
#endif
        }
    }
}
