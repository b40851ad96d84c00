"""The VM's instructions.

In the table, `d` is the destination cell, `a b c m` are source cells; other words are immediate: `w` a width in bits,
`n` limbs (or bytes, ids), `s` a shift, `o` an offset in the frame, `pc` a position in the code. Values are modulo 2^64;
each instruction states whether it reads them as signed. W… operate on numbers of n limbs, V… on n lanes of 64 bits.

The groups are run by vm, vm_wide, vm_headers and vm_hash.
"""

from typing import TYPE_CHECKING

_VM = """
END    status                 stop
JMP    pc
LOOP   pc                     jump back, counted: a packet that would never leave is trapped
JZ     a pc
JNZ    a pc
JEQ    a b pc
JCASE  a m b n pc             if a & m == b, n limbs each
JMISS  pc
JMEMBER pc                    if the record is not a group's
JEXIT  pc
RNG    a n pc                 go to pc unless a is within 0..n-1
MOV    d a
ADD    d a b
SUB    d a b
MUL    d a b
AND    d a b
OR     d a b
XOR    d a b
NOT    d a
ADDM   d a b m                (a + b) & m
SUBM   d a b m
SHL    d a b                  b < 0 counts as 0; 0 if b > 63
SHRU   d a b
SHRS   d a b
SLICE  d a s m                (a >> s) & m, s 0..63
SEXT   d a w                  1..63 bits
DIVS   d a b                  towards 0; 0 if b is 0
REMS   d a b
DIVU   d a b
REMU   d a b
EQ     d a b
NE     d a b
LTS    d a b
LES    d a b
LTU    d a b
LEU    d a b
SEL    d c a b                c ? a : b
LD8    d o                    fields on the wire: whole bytes
LD16   d o
LD32   d o
LD64   d o
LDX    d o s m                (8 bytes >> s) & m
LDBITS d o bit w              anywhere, up to 64 bits
ST8    o a
ST16   o a
ST32   o a
ST64   o a
STX    o s m a
STBITS o bit w a
SIGNF  d a w o                a signed field's value: its bits a, its flag at o
EXTR   o n valid pc           extract n bytes of a fixed header, or go to pc
CLEAR  o n                    n bytes 0
LEFT   n pc                   go to pc unless n bytes are left
LIMIT  pc                     a parse state: after too many of them go to pc
SKIP   a pc pc                advance by a bits; not whole bytes; too short
PEEK   d k w n                w bits at the cursor + k bits; zeros beyond the end
VSET   a n m o pc             if the key is in a value set, under a mask
LOOKUP table a n              find the record for the n limbs from a: sets entry and hit, counts
PICK   a                      the member of a group that a selects
CALL                          run the record's action
RET                           continue after the table
ARG    d k                    word k of the action's arguments
REG    d o a n                n limbs of a register: o describes the array, a is the index
REGW   o a n b
COUNT  o a
METER  d o a
METERD d o                    direct meter of the entry
RANDOM d a b                  uniform within a..b
EMITH  valid o n              append n bytes to the output, if valid
EVENT  kind id n              append an event for Python; n limbs follow
EVADD  a n
TRAP   status
TRUNC  a
"""

_WIDE = """
WLD    d o bit w n
VBLD   d o n                  the value of a varbit field
WST    o bit w a              (w + 63) / 64 limbs of a
WEXT   d n a k signed         k limbs to n
WADD   d a b n
WSUB   d a b n
WMUL   d a b n
WNOT   d a n
WSHL   d a b n                b as in SHL
WSHR   d n a k b signed       bits b.. of k limbs
WSEXT  d a w n                two's complement of the low w bits
WCMP   d a b n                signed: -1, 0, 1
WSEL   d c a b n
WMOV   d a n
VAND   d a b n
VOR    d a b n
VXOR   d a b n
VADD   d a b n
VSUB   d a b n
VMUL   d a b n
VANDC  d a m n                every lane & m
VFILL  d a n
VLD    d o size n             n fields of 1, 2, 4 or 8 bytes, one after the other
VST    o size a n
VREG   d o a n                a cell of n registers that lie side by side
VREGW  o a n b
"""

_HEADERS = """
HIDX   d a o n                the a-th of n ids at o; -1 beyond
HVALID d a                    of the header with id a; 0 for -1
HFIELD d a bit w k            a field of a header; k: its sign flag's number, or -1
HSET   a bit w b k c          write one; flag c
HWIDE  d a bit w n
HWSET  a bit w b
HEQ    d a b                  both headers valid and equal
HSHIFT o n a                  push (a > 0) or pop: n ids at o
NEXT   o a n                  cell o += a, within 0..n
VCOPY  o o n                  a varbit field of at most n bytes
HADD   a fast
HREM   a
HCOPY  a b                    assign_header
EXTH   a b varbit max pc pc pc extract the header with id a, its varbit field b bits wide
EMITV  a                      append a header with a varbit field, if valid
"""

_HASH = """
HBEGIN                        the hash buffer is empty
HPUT   valid o bit w          append a field's bits, if its header is valid
HPUTC  a w                    append the low w bits of a
HPUTV  a                      append a varbit field
HPUTH  a                      append a header as on the wire
HPAY                          pad, append the payload
HASH   d kind a               a: address of its parameters
"""

NAMES: list[str] = [line.split()[0] for part in (_VM, _WIDE, _HEADERS, _HASH) for line in part.strip().splitlines()]
"""Mnemonics by opcode."""

for _number, _name in enumerate(NAMES):
    globals()[_name] = _number

if TYPE_CHECKING:

    def __getattr__(name: str) -> int: ...  # the mnemonics above


CRC, CSUM16, XOR16, XOR32, IDENTITY, XXH64, FNV, TOEPLITZ = range(8)
"""Kinds of HASH."""
FIRST_WIDE = NAMES.index("WLD")
FIRST_HEADER = NAMES.index("HIDX")
FIRST_HASH = NAMES.index("HBEGIN")
