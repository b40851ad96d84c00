"""The VM's instructions.

In the table, `d` is the cell that is written, `a b c m` cells that are read; other words are immediate: `w` a width in
bits, `n` limbs, `s` a shift, `o` an offset in the frame, `pc` where to go on. Values are modulo 2^64; whether they are
signed is the instruction's affair. W… work on numbers of n limbs; V… on n independent 64-bit lanes.
"""

from __future__ import annotations

_TABLE = """
END    status                 stop
JMP    pc
LOOP   pc                     jump back, counted: a packet that goes on for ever is trapped
JZ     a pc
JNZ    a pc
JEQ    a b pc
JCASE  a m b pc               if a & m == b
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
SHL    d a b                  0 if b > 63; b < 0 counts as 0
SHRU   d a b                  b signed; 0 if b > 63
SHRS   d a b
SHLI   d a s
SLICE  d a s m                (a >> s) & m, s 0..63
SEXT   d a w                  1..63 bits
DIVS   d a b                  towards 0; 0 if b is 0
REMS   d a b
DIVU   d a b
REMU   d a b
MINS   d a b
MAXS   d a b
MINU   d a b
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
LDX    d o s m                within 8 bytes
LDBITS d o bit w              anywhere, up to 64 bits
ST8    o a
ST16   o a
ST32   o a
ST64   o a
STX    o s w a
STBITS o bit w a
SIGNF  d a w o                a field of w bits whose sign flag is at o
WLD    d o bit w n
WST    o bit w a              (w + 63) / 64 limbs of a
WEXT   d n a k signed         k limbs to n
WADD   d a b n
WSUB   d a b n
WMUL   d a b n
WNOT   d a n
WSHL   d a b n                b as in SHL
WSHR   d n a k b signed       bits b.. of k limbs
WSEXT  d a w n                two's complement of the low w bits
WZEXT  d a w n
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
VSHR   d a s n
VSEXT  d a w n
VFILL  d a n
VLD    d o bytes n            n fields of 1, 2, 4 or 8 bytes, one after the other
VST    o bytes a n
VREG   d o a stride n         read n registers that lie side by side: base address in o, index in a
VREGW  o a stride n b
HIDX   d a o n                the a-th of n ids at o; -1 beyond
HVALID d a                    of the header with id a; 0 for -1
HFIELD d a bit w k            a field of a header; k: its sign flag's number, or -1
HSET   a bit w b k c          write one; flag c
HWIDE  d a bit w n
HWSET  a bit w b
HADD   a fast
HREM   a
HCOPY  a b                    assign_header
HEQ    d a b
HSHIFT o n k next_o size      push or pop: ids at o, n of them, k cell, cell of `next`
HBITS  d a                    width of the varbit field
UVALID d o n                  the first valid one of n ids at o, or -1
EXTR   o n valid pc total     extract n bytes of a fixed header
EXTH   a b pc1 pc2 pc3        extract header id a with varbit width b
SKIP   a pc1 pc2              advance by a bits
PEEK   d k w n                w bits at the cursor + k bits; zeros beyond the end
LEFT   n pc                   go on only if n bytes are left
CHKLEN n pc                   as LEFT, but does not move
VSET   d a n vset o           is the key (n limbs at a; cover at o) in a value set
KEY    o n                    -
LOOKUP table o n              find the entry for n limbs at o; sets entry and hit
METERD d meter                direct meter of the entry
PICK   a                      of a group's members the one that a chooses
CALL   pc_end                 run the entry's action
RET                           go on after the table
JHIT   pc
JGROUP pc
JEXIT  pc
ARG    d k                    word k of the action's arguments
WARG   d k n
RNG    a n pc                 go on at pc if a is not within 0..n-1 (unsigned)
REG    d o a stride n
REGW   o a stride n b
COUNT  o a
METER  d o a
HBEGIN                        the hash buffer is empty
HPUT   valid o bit w          append a field's bits, if its header is valid (valid 0: always)
HPUTC  a w                    append the low w bits of a
HPUTW  a w                    append w bits of limbs
HPUTH  a                      append a header as on the wire
HPAY                          pad, append the payload
HASH   d algo o               o: cell with the address of its parameters
EMITH  valid o n              append n bytes to the output, if valid
EMITV  a                      append a header with a varbit field
RANDOM d a b
EVENT  kind id o n            tell Python: n limbs at o
EVADD  a n                    append limbs to the event
TRAP   status
REQ    o a mask               request: cell o = (a & mask) + 1
TRUNC  a
COPYL  k                      -
LIMIT  pc                     a parse state: too many of them go to pc
CHKSUM d o n                  csum16 over n words of (valid, offset, bytes) at o
"""

NAMES: list[str] = [line.split()[0] for line in _TABLE.strip().splitlines()]
"""Mnemonics by number."""

for _number, _name in enumerate(NAMES):
    globals()[_name] = _number
