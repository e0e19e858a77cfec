"""The table of AArch64 instructions, from which code is encoded and read back.

A line of the table is a form of an instruction: `name : assembly : bits`, as chapters C4 to C7 of
the Arm Architecture Reference Manual (DDI 0487) have it, most significant bit first.

In the assembly, a register is a class and the letter of its field: `Vd.4s`, `Qt`, `Dn`, `Sn`, `Hn`,
`Bn`, `Xd`, `Wd`, and `Pn` or `Rn` for a 64-bit or 32-bit register whose number 31 means the stack
pointer (elsewhere that is zero). `=` before it says that it is written, `&` that it is read and
written; else it is read. `#ab` is a number whose bits are the fields a and b, most significant
first; what stands behind says how a value becomes them:

    #i      as it is            #+i     with a sign           #i*8    divided by 8
    #i>32   32 less it (how far elements are shifted right)
    #rs<<64 left shift of a register of 64 bits               #i&64   a repeating pattern of bits
    #i~     a number of floating point, of 8 bits             @i*4    a label, as a distance
    ?c      a condition         ?!c     its opposite

A form stands for several where the line names, behind the bits, a set of `SETS`: each member puts
text in place of <T>, and bits in place of capital letters.
"""

from __future__ import annotations

CONDITIONS = ("eq", "ne", "hs", "lo", "mi", "pl", "vs", "vc", "hi", "ls", "ge", "lt", "gt", "le",
              "al")
"""Conditions by their numbers. After comparing f32, "mi" is less, "ls" less or equal, "gt" and "ge"
are greater: all false where one is NaN."""

SETS: dict[str, str] = {
    # elements of vectors: floating point, integers of any size, and of less than 64 bits
    "float": "T=2s Q=0 Z=0, T=4s Q=1 Z=0, T=2d Q=1 Z=1",
    "single": "T=2s Q=0, T=4s Q=1",
    "half": "T=4h Q=0, T=8h Q=1",
    "integer": "T=8b Q=0 Z=00, T=16b Q=1 Z=00, T=4h Q=0 Z=01, T=8h Q=1 Z=01, "
               "T=2s Q=0 Z=10, T=4s Q=1 Z=10, T=2d Q=1 Z=11",
    "small": "T=8b Q=0 Z=00, T=16b Q=1 Z=00, T=4h Q=0 Z=01, T=8h Q=1 Z=01, "
             "T=2s Q=0 Z=10, T=4s Q=1 Z=10",
    "bytes": "T=8b Q=0, T=16b Q=1",
    "across": "T=8b E=B Q=0 Z=00, T=16b E=B Q=1 Z=00, T=4h E=H Q=0 Z=01, T=8h E=H Q=1 Z=01, "
              "T=4s E=S Q=1 Z=10",
    "shift": "T=8b Q=0 B=8 H=0001lll, T=16b Q=1 B=8 H=0001lll, T=4h Q=0 B=16 H=001llll, "
             "T=8h Q=1 B=16 H=001llll, T=2s Q=0 B=32 H=01lllll, T=4s Q=1 B=32 H=01lllll, "
             "T=2d Q=1 B=64 H=1llllll",
    # single lanes, and general registers that hold them
    "element": "T=8b E=b I=llll1 Q=0, T=16b E=b I=llll1 Q=1, T=4h E=h I=lll10 Q=0, "
               "T=8h E=h I=lll10 Q=1, T=2s E=s I=ll100 Q=0, T=4s E=s I=ll100 Q=1, "
               "T=2d E=d I=l1000 Q=1",
    "general_element": "T=8b G=W I=00001 Q=0, T=16b G=W I=00001 Q=1, T=4h G=W I=00010 Q=0, "
                       "T=8h G=W I=00010 Q=1, T=2s G=W I=00100 Q=0, T=4s G=W I=00100 Q=1, "
                       "T=2d G=X I=01000 Q=1",
    "lane": "E=b I=llll1 K=kkkk G=W, E=h I=lll10 K=kkk0 G=W, E=s I=ll100 K=kk00 G=W, "
            "E=d I=l1000 K=k000 G=X",
    "umov_lane": "E=b I=llll1 G=W Q=0, E=h I=lll10 G=W Q=0, E=s I=ll100 G=W Q=0, "
                 "E=d I=l1000 G=X Q=1",
    # T are narrow elements, W wide ones; of vectors of narrow ones, "2" fills the upper half
    "widths": "T=8b W=8h P= K== Q=0 Z=00, T=16b W=8h P=2 K=& Q=1 Z=00, "
              "T=4h W=4s P= K== Q=0 Z=01, T=8h W=4s P=2 K=& Q=1 Z=01, "
              "T=2s W=2d P= K== Q=0 Z=10, T=4s W=2d P=2 K=& Q=1 Z=10",
    "float_widths": "T=4h W=4s P= K== Q=0 Z=0, T=8h W=4s P=2 K=& Q=1 Z=0, "
                    "T=2s W=2d P= K== Q=0 Z=1, T=4s W=2d P=2 K=& Q=1 Z=1",
    "halves": "T=4h P= K== Q=0, T=8h P=2 K=& Q=1",
    "width_shift": "T=8b W=8h P= K== Q=0 B=8 H=0001lll, T=16b W=8h P=2 K=& Q=1 B=8 H=0001lll, "
                   "T=4h W=4s P= K== Q=0 B=16 H=001llll, T=8h W=4s P=2 K=& Q=1 B=16 H=001llll, "
                   "T=2s W=2d P= K== Q=0 B=32 H=01lllll, T=4s W=2d P=2 K=& Q=1 B=32 H=01lllll",
    "products": "T=2h W=2s Q=0, T=4h W=4s Q=1",
    "dot": "T=8b W=2s Q=0, T=16b W=4s Q=1",
    "dot_halves": "T=4h W=2s Q=0, T=8h W=4s Q=1",
    # scalars of floating point, and general registers
    "scalar": "T=S t=s Y=00, T=D t=d Y=01",
    "scalar_general": "T=S t=s Y=00 G=X g=x F=1, T=S t=s Y=00 G=W g=w F=0, "
                      "T=D t=d Y=01 G=X g=x F=1, T=D t=d Y=01 G=W g=w F=0",
    "general": "G=X g=x A=P F=1, G=W g=w A=R F=0",
    "shifted": "G=X g=x F=1 S=iiiiii, G=W g=w F=0 S=0iiiii",
    "logical": "G=X g=x A=P F=1 B=64 N=yrs M=y, G=W g=w A=R F=0 B=32 N=rs M=0",
    "moved": "G=X g=x F=1 U=hh, G=W g=w F=0 U=0h",
    "bits": "G=X g=x F=1 B=64 S=rrrrrrssssss, G=W g=w F=0 B=32 S=0rrrrr0sssss",
    # memory: R or G is the register, B the bytes of an element (or their logarithm)
    "memory": "T=q R=Q Z=00 O=1 B=16, T=d R=D Z=11 O=0 B=8, T=s R=S Z=10 O=0 B=4, "
              "T=h R=H Z=01 O=0 B=2, T=b R=B Z=00 O=0 B=1",
    "memory_log": "T=q R=Q Z=00 O=1 B=4, T=d R=D Z=11 O=0 B=3, T=s R=S Z=10 O=0 B=2, "
                  "T=h R=H Z=01 O=0 B=1",
    "memory_pair": "T=q R=Q Z=10 B=16, T=d R=D Z=01 B=8, T=s R=S Z=00 B=4",
    "memory_lane": "T=b C=000 K=szy L=qszy B=1, T=h C=010 K=sz0 L=qsz B=2, "
                   "T=s C=100 K=s00 L=qs B=4, T=d C=100 K=001 L=q B=8",
    "whole_vector": "T=8b Q=0 Z=00 S=8 B=1, T=16b Q=1 Z=00 S=16 B=1, T=4h Q=0 Z=01 S=8 B=2, "
                    "T=8h Q=1 Z=01 S=16 B=2, T=2s Q=0 Z=10 S=8 B=4, T=4s Q=1 Z=10 S=16 B=4, "
                    "T=1d Q=0 Z=11 S=8 B=8, T=2d Q=1 Z=11 S=16 B=8",
    "load": "M=ldr U=ldur T=x G=X Z=11 O=01 B=8, M=ldr U=ldur T=w G=W Z=10 O=01 B=4, "
            "M=ldrh U=ldurh T=w G=W Z=01 O=01 B=2, M=ldrb U=ldurb T=w G=W Z=00 O=01 B=1, "
            "M=ldrsw U=ldursw T=x G=X Z=10 O=10 B=4, M=ldrsh U=ldursh T=x G=X Z=01 O=10 B=2, "
            "M=ldrsb U=ldursb T=x G=X Z=00 O=10 B=1",
    "store": "M=str U=stur T=x G=X Z=11 B=8, M=str U=stur T=w G=W Z=10 B=4, "
             "M=strh U=sturh T=w G=W Z=01 B=2, M=strb U=sturb T=w G=W Z=00 B=1",
    "whole": "T=x G=X Z=11, T=w G=W Z=10",
}
"""What the lines of the table are repeated for."""

TABLES: dict[str, str] = {
    "asimd": """
# arithmetic of f32 and f64 vectors (C7.2)
fmla.<T> : fmla &Vd.<T>, Vn.<T>, Vm.<T> : 0Q0011100Z1mmmmm110011nnnnnddddd : float
fmls.<T> : fmls &Vd.<T>, Vn.<T>, Vm.<T> : 0Q0011101Z1mmmmm110011nnnnnddddd : float
fadd.<T> : fadd =Vd.<T>, Vn.<T>, Vm.<T> : 0Q0011100Z1mmmmm110101nnnnnddddd : float
fsub.<T> : fsub =Vd.<T>, Vn.<T>, Vm.<T> : 0Q0011101Z1mmmmm110101nnnnnddddd : float
fmul.<T> : fmul =Vd.<T>, Vn.<T>, Vm.<T> : 0Q1011100Z1mmmmm110111nnnnnddddd : float
fdiv.<T> : fdiv =Vd.<T>, Vn.<T>, Vm.<T> : 0Q1011100Z1mmmmm111111nnnnnddddd : float
fmax.<T> : fmax =Vd.<T>, Vn.<T>, Vm.<T> : 0Q0011100Z1mmmmm111101nnnnnddddd : float
fmin.<T> : fmin =Vd.<T>, Vn.<T>, Vm.<T> : 0Q0011101Z1mmmmm111101nnnnnddddd : float
fmaxnm.<T> : fmaxnm =Vd.<T>, Vn.<T>, Vm.<T> : 0Q0011100Z1mmmmm110001nnnnnddddd : float
fminnm.<T> : fminnm =Vd.<T>, Vn.<T>, Vm.<T> : 0Q0011101Z1mmmmm110001nnnnnddddd : float
faddp.<T> : faddp =Vd.<T>, Vn.<T>, Vm.<T> : 0Q1011100Z1mmmmm110101nnnnnddddd : float
fmaxp.<T> : fmaxp =Vd.<T>, Vn.<T>, Vm.<T> : 0Q1011100Z1mmmmm111101nnnnnddddd : float
fminp.<T> : fminp =Vd.<T>, Vn.<T>, Vm.<T> : 0Q1011101Z1mmmmm111101nnnnnddddd : float
fcmeq.<T> : fcmeq =Vd.<T>, Vn.<T>, Vm.<T> : 0Q0011100Z1mmmmm111001nnnnnddddd : float
fcmge.<T> : fcmge =Vd.<T>, Vn.<T>, Vm.<T> : 0Q1011100Z1mmmmm111001nnnnnddddd : float
fcmgt.<T> : fcmgt =Vd.<T>, Vn.<T>, Vm.<T> : 0Q1011101Z1mmmmm111001nnnnnddddd : float
fabd.<T> : fabd =Vd.<T>, Vn.<T>, Vm.<T> : 0Q1011101Z1mmmmm110101nnnnnddddd : float
frecps.<T> : frecps =Vd.<T>, Vn.<T>, Vm.<T> : 0Q0011100Z1mmmmm111111nnnnnddddd : float
frsqrts.<T> : frsqrts =Vd.<T>, Vn.<T>, Vm.<T> : 0Q0011101Z1mmmmm111111nnnnnddddd : float
fabs.<T> : fabs =Vd.<T>, Vn.<T> : 0Q0011101Z100000111110nnnnnddddd : float
fneg.<T> : fneg =Vd.<T>, Vn.<T> : 0Q1011101Z100000111110nnnnnddddd : float
fsqrt.<T> : fsqrt =Vd.<T>, Vn.<T> : 0Q1011101Z100001111110nnnnnddddd : float
frintn.<T> : frintn =Vd.<T>, Vn.<T> : 0Q0011100Z100001100010nnnnnddddd : float
frintm.<T> : frintm =Vd.<T>, Vn.<T> : 0Q0011100Z100001100110nnnnnddddd : float
frintp.<T> : frintp =Vd.<T>, Vn.<T> : 0Q0011101Z100001100010nnnnnddddd : float
frintz.<T> : frintz =Vd.<T>, Vn.<T> : 0Q0011101Z100001100110nnnnnddddd : float
frinta.<T> : frinta =Vd.<T>, Vn.<T> : 0Q1011100Z100001100010nnnnnddddd : float
frinti.<T> : frinti =Vd.<T>, Vn.<T> : 0Q1011101Z100001100110nnnnnddddd : float
frintx.<T> : frintx =Vd.<T>, Vn.<T> : 0Q1011100Z100001100110nnnnnddddd : float
fcvtns.<T> : fcvtns =Vd.<T>, Vn.<T> : 0Q0011100Z100001101010nnnnnddddd : float
fcvtnu.<T> : fcvtnu =Vd.<T>, Vn.<T> : 0Q1011100Z100001101010nnnnnddddd : float
fcvtms.<T> : fcvtms =Vd.<T>, Vn.<T> : 0Q0011100Z100001101110nnnnnddddd : float
fcvtps.<T> : fcvtps =Vd.<T>, Vn.<T> : 0Q0011101Z100001101010nnnnnddddd : float
fcvtas.<T> : fcvtas =Vd.<T>, Vn.<T> : 0Q0011100Z100001110010nnnnnddddd : float
fcvtzs.<T> : fcvtzs =Vd.<T>, Vn.<T> : 0Q0011101Z100001101110nnnnnddddd : float
fcvtzu.<T> : fcvtzu =Vd.<T>, Vn.<T> : 0Q1011101Z100001101110nnnnnddddd : float
scvtf.<T> : scvtf =Vd.<T>, Vn.<T> : 0Q0011100Z100001110110nnnnnddddd : float
ucvtf.<T> : ucvtf =Vd.<T>, Vn.<T> : 0Q1011100Z100001110110nnnnnddddd : float
frecpe.<T> : frecpe =Vd.<T>, Vn.<T> : 0Q0011101Z100001110110nnnnnddddd : float
frsqrte.<T> : frsqrte =Vd.<T>, Vn.<T> : 0Q1011101Z100001110110nnnnnddddd : float
fcmgt.<T>.zero : fcmgt =Vd.<T>, Vn.<T>, 0.0 : 0Q0011101Z100000110010nnnnnddddd : float
fcmge.<T>.zero : fcmge =Vd.<T>, Vn.<T>, 0.0 : 0Q1011101Z100000110010nnnnnddddd : float
fcmeq.<T>.zero : fcmeq =Vd.<T>, Vn.<T>, 0.0 : 0Q0011101Z100000110110nnnnnddddd : float
fcmle.<T>.zero : fcmle =Vd.<T>, Vn.<T>, 0.0 : 0Q1011101Z100000110110nnnnnddddd : float
fcmlt.<T>.zero : fcmlt =Vd.<T>, Vn.<T>, 0.0 : 0Q0011101Z100000111010nnnnnddddd : float
fmla.<T>.lane : fmla &Vd.<T>, Vn.<T>, Vm.s[#hl] : 0Q00111110lmmmmm0001h0nnnnnddddd : single
fmls.<T>.lane : fmls &Vd.<T>, Vn.<T>, Vm.s[#hl] : 0Q00111110lmmmmm0101h0nnnnnddddd : single
fmul.<T>.lane : fmul =Vd.<T>, Vn.<T>, Vm.s[#hl] : 0Q00111110lmmmmm1001h0nnnnnddddd : single
fmaxv.s : fmaxv =Sd, Vn.4s : 0110111000110000111110nnnnnddddd
fminv.s : fminv =Sd, Vn.4s : 0110111010110000111110nnnnnddddd
fmaxnmv.s : fmaxnmv =Sd, Vn.4s : 0110111000110000110010nnnnnddddd
fminnmv.s : fminnmv =Sd, Vn.4s : 0110111010110000110010nnnnnddddd
faddp.s : faddp =Sd, Vn.2s : 0111111000110000110110nnnnnddddd
fcvtl<P>.<W> : fcvtl<P> =Vd.<W>, Vn.<T> : 0Q0011100Z100001011110nnnnnddddd : float_widths
fcvtn.<T> : fcvtn<P> <K>Vd.<T>, Vn.<W> : 0Q0011100Z100001011010nnnnnddddd : float_widths
fmov.<T>.immediate : fmov =Vd.<T>, #ag~ : 0Q00111100000aaa111101gggggddddd : single
fmov.2d.immediate : fmov =Vd.2d, #ag~ : 0110111100000aaa111101gggggddddd

# arithmetic of integer vectors (C7.2)
add.<T> : add =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110Z1mmmmm100001nnnnnddddd : integer
sub.<T> : sub =Vd.<T>, Vn.<T>, Vm.<T> : 0Q101110Z1mmmmm100001nnnnnddddd : integer
mul.<T> : mul =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110Z1mmmmm100111nnnnnddddd : small
mla.<T> : mla &Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110Z1mmmmm100101nnnnnddddd : small
mls.<T> : mls &Vd.<T>, Vn.<T>, Vm.<T> : 0Q101110Z1mmmmm100101nnnnnddddd : small
smax.<T> : smax =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110Z1mmmmm011001nnnnnddddd : small
smin.<T> : smin =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110Z1mmmmm011011nnnnnddddd : small
umax.<T> : umax =Vd.<T>, Vn.<T>, Vm.<T> : 0Q101110Z1mmmmm011001nnnnnddddd : small
umin.<T> : umin =Vd.<T>, Vn.<T>, Vm.<T> : 0Q101110Z1mmmmm011011nnnnnddddd : small
addp.<T> : addp =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110Z1mmmmm101111nnnnnddddd : integer
sshl.<T> : sshl =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110Z1mmmmm010001nnnnnddddd : integer
ushl.<T> : ushl =Vd.<T>, Vn.<T>, Vm.<T> : 0Q101110Z1mmmmm010001nnnnnddddd : integer
cmgt.<T> : cmgt =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110Z1mmmmm001101nnnnnddddd : integer
cmge.<T> : cmge =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110Z1mmmmm001111nnnnnddddd : integer
cmhi.<T> : cmhi =Vd.<T>, Vn.<T>, Vm.<T> : 0Q101110Z1mmmmm001101nnnnnddddd : integer
cmhs.<T> : cmhs =Vd.<T>, Vn.<T>, Vm.<T> : 0Q101110Z1mmmmm001111nnnnnddddd : integer
cmeq.<T> : cmeq =Vd.<T>, Vn.<T>, Vm.<T> : 0Q101110Z1mmmmm100011nnnnnddddd : integer
cmtst.<T> : cmtst =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110Z1mmmmm100011nnnnnddddd : integer
abs.<T> : abs =Vd.<T>, Vn.<T> : 0Q001110Z100000101110nnnnnddddd : integer
neg.<T> : neg =Vd.<T>, Vn.<T> : 0Q101110Z100000101110nnnnnddddd : integer
cmgt.<T>.zero : cmgt =Vd.<T>, Vn.<T>, 0 : 0Q001110Z100000100010nnnnnddddd : integer
cmge.<T>.zero : cmge =Vd.<T>, Vn.<T>, 0 : 0Q101110Z100000100010nnnnnddddd : integer
cmeq.<T>.zero : cmeq =Vd.<T>, Vn.<T>, 0 : 0Q001110Z100000100110nnnnnddddd : integer
cmle.<T>.zero : cmle =Vd.<T>, Vn.<T>, 0 : 0Q101110Z100000100110nnnnnddddd : integer
cmlt.<T>.zero : cmlt =Vd.<T>, Vn.<T>, 0 : 0Q001110Z100000101010nnnnnddddd : integer
addv.<T> : addv =<E>d, Vn.<T> : 0Q001110Z110001101110nnnnnddddd : across
smaxv.<T> : smaxv =<E>d, Vn.<T> : 0Q001110Z110000101010nnnnnddddd : across
sminv.<T> : sminv =<E>d, Vn.<T> : 0Q001110Z110001101010nnnnnddddd : across
umaxv.<T> : umaxv =<E>d, Vn.<T> : 0Q101110Z110000101010nnnnnddddd : across
uminv.<T> : uminv =<E>d, Vn.<T> : 0Q101110Z110001101010nnnnnddddd : across
xtn.<T> : xtn<P> <K>Vd.<T>, Vn.<W> : 0Q001110Z100001001010nnnnnddddd : widths
sqxtn.<T> : sqxtn<P> <K>Vd.<T>, Vn.<W> : 0Q001110Z100001010010nnnnnddddd : widths
uqxtn.<T> : uqxtn<P> <K>Vd.<T>, Vn.<W> : 0Q101110Z100001010010nnnnnddddd : widths
sqxtun.<T> : sqxtun<P> <K>Vd.<T>, Vn.<W> : 0Q101110Z100001001010nnnnnddddd : widths
mul.<T>.lane : mul =Vd.<T>, Vn.<T>, Vm.s[#hl] : 0Q00111110lmmmmm1000h0nnnnnddddd : single
mla.<T>.lane : mla &Vd.<T>, Vn.<T>, Vm.s[#hl] : 0Q10111110lmmmmm0000h0nnnnnddddd : single

# shifts of vectors by a number (C7.2)
shl.<T> : shl =Vd.<T>, Vn.<T>, #l : 0Q0011110H010101nnnnnddddd : shift
sli.<T> : sli &Vd.<T>, Vn.<T>, #l : 0Q1011110H010101nnnnnddddd : shift
sshr.<T> : sshr =Vd.<T>, Vn.<T>, #l><B> : 0Q0011110H000001nnnnnddddd : shift
ushr.<T> : ushr =Vd.<T>, Vn.<T>, #l><B> : 0Q1011110H000001nnnnnddddd : shift
ssra.<T> : ssra &Vd.<T>, Vn.<T>, #l><B> : 0Q0011110H000101nnnnnddddd : shift
usra.<T> : usra &Vd.<T>, Vn.<T>, #l><B> : 0Q1011110H000101nnnnnddddd : shift
srshr.<T> : srshr =Vd.<T>, Vn.<T>, #l><B> : 0Q0011110H001001nnnnnddddd : shift
urshr.<T> : urshr =Vd.<T>, Vn.<T>, #l><B> : 0Q1011110H001001nnnnnddddd : shift
sri.<T> : sri &Vd.<T>, Vn.<T>, #l><B> : 0Q1011110H010001nnnnnddddd : shift
shrn.<T> : shrn<P> <K>Vd.<T>, Vn.<W>, #l><B> : 0Q0011110H100001nnnnnddddd : width_shift
rshrn.<T> : rshrn<P> <K>Vd.<T>, Vn.<W>, #l><B> : 0Q0011110H100011nnnnnddddd : width_shift
sshll<P>.<W> : sshll<P> =Vd.<W>, Vn.<T>, #l : 0Q0011110H101001nnnnnddddd : width_shift
ushll<P>.<W> : ushll<P> =Vd.<W>, Vn.<T>, #l : 0Q1011110H101001nnnnnddddd : width_shift

# bits of vectors (C7.2)
and.<T> : and =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110001mmmmm000111nnnnnddddd : bytes
bic.<T> : bic =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110011mmmmm000111nnnnnddddd : bytes
orr.<T> : orr =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110101mmmmm000111nnnnnddddd : bytes
orn.<T> : orn =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110111mmmmm000111nnnnnddddd : bytes
eor.<T> : eor =Vd.<T>, Vn.<T>, Vm.<T> : 0Q101110001mmmmm000111nnnnnddddd : bytes
bsl.<T> : bsl &Vd.<T>, Vn.<T>, Vm.<T> : 0Q101110011mmmmm000111nnnnnddddd : bytes
bit.<T> : bit &Vd.<T>, Vn.<T>, Vm.<T> : 0Q101110101mmmmm000111nnnnnddddd : bytes
bif.<T> : bif &Vd.<T>, Vn.<T>, Vm.<T> : 0Q101110111mmmmm000111nnnnnddddd : bytes
not.<T> : mvn =Vd.<T>, Vn.<T> : 0Q10111000100000010110nnnnnddddd : bytes
cnt.<T> : cnt =Vd.<T>, Vn.<T> : 0Q00111000100000010110nnnnnddddd : bytes
movi.<T> : movi =Vd.<T>, #ag, lsl #i*8 : 0Q00111100000aaa0ii001gggggddddd : single
mvni.<T> : mvni =Vd.<T>, #ag, lsl #i*8 : 0Q10111100000aaa0ii001gggggddddd : single
movi.<T> : movi =Vd.<T>, #ag : 0Q00111100000aaa111001gggggddddd : bytes

# lanes that change places (C7.2)
uzp1.<T> : uzp1 =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110Z0mmmmm000110nnnnnddddd : integer
trn1.<T> : trn1 =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110Z0mmmmm001010nnnnnddddd : integer
zip1.<T> : zip1 =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110Z0mmmmm001110nnnnnddddd : integer
uzp2.<T> : uzp2 =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110Z0mmmmm010110nnnnnddddd : integer
trn2.<T> : trn2 =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110Z0mmmmm011010nnnnnddddd : integer
zip2.<T> : zip2 =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110Z0mmmmm011110nnnnnddddd : integer
ext.16b : ext =Vd.16b, Vn.16b, Vm.16b, #i : 01101110000mmmmm0iiii0nnnnnddddd
ext.8b : ext =Vd.8b, Vn.8b, Vm.8b, #i : 00101110000mmmmm00iii0nnnnnddddd
dup.<T>.lane : dup =Vd.<T>, Vn.<E>[#l] : 0Q001110000I000001nnnnnddddd : element
dup.<T> : dup =Vd.<T>, <G>n : 0Q001110000I000011nnnnnddddd : general_element
ins.<E> : ins &Vd.<E>[#l], <G>n : 01001110000I000111nnnnnddddd : lane
ins.<E>.lane : ins &Vd.<E>[#l], Vn.<E>[#k] : 01101110000I0K1nnnnnddddd : lane
umov.<E> : umov =<G>d, Vn.<E>[#l] : 0Q001110000I001111nnnnnddddd : umov_lane
smov.b : smov =Xd, Vn.b[#l] : 01001110000llll1001011nnnnnddddd
smov.h : smov =Xd, Vn.h[#l] : 01001110000lll10001011nnnnnddddd
smov.s : smov =Xd, Vn.s[#l] : 01001110000ll100001011nnnnnddddd
rev64.<T> : rev64 =Vd.<T>, Vn.<T> : 0Q001110Z100000000010nnnnnddddd : small
tbl.<T> : tbl =Vd.<T>, {Vn.16b}, Vm.<T> : 0Q001110000mmmmm000000nnnnnddddd : bytes
tbx.<T> : tbx &Vd.<T>, {Vn.16b}, Vm.<T> : 0Q001110000mmmmm000100nnnnnddddd : bytes

# scalars of floating point (C7.2)
fmul.<t> : fmul =<T>d, <T>n, <T>m : 00011110Y1mmmmm000010nnnnnddddd : scalar
fdiv.<t> : fdiv =<T>d, <T>n, <T>m : 00011110Y1mmmmm000110nnnnnddddd : scalar
fadd.<t> : fadd =<T>d, <T>n, <T>m : 00011110Y1mmmmm001010nnnnnddddd : scalar
fsub.<t> : fsub =<T>d, <T>n, <T>m : 00011110Y1mmmmm001110nnnnnddddd : scalar
fmax.<t> : fmax =<T>d, <T>n, <T>m : 00011110Y1mmmmm010010nnnnnddddd : scalar
fmin.<t> : fmin =<T>d, <T>n, <T>m : 00011110Y1mmmmm010110nnnnnddddd : scalar
fmaxnm.<t> : fmaxnm =<T>d, <T>n, <T>m : 00011110Y1mmmmm011010nnnnnddddd : scalar
fminnm.<t> : fminnm =<T>d, <T>n, <T>m : 00011110Y1mmmmm011110nnnnnddddd : scalar
fmov.<t> : fmov =<T>d, <T>n : 00011110Y100000010000nnnnnddddd : scalar
fabs.<t> : fabs =<T>d, <T>n : 00011110Y100000110000nnnnnddddd : scalar
fneg.<t> : fneg =<T>d, <T>n : 00011110Y100001010000nnnnnddddd : scalar
fsqrt.<t> : fsqrt =<T>d, <T>n : 00011110Y100001110000nnnnnddddd : scalar
fmadd.<t> : fmadd =<T>d, <T>n, <T>m, <T>a : 00011111Y0mmmmm0aaaaannnnnddddd : scalar
fcmp.<t> : fcmp <T>n, <T>m : 00011110Y1mmmmm001000nnnnn00000 : scalar
fcvt.h.s : fcvt =Hd, Sn : 0001111000100011110000nnnnnddddd
fcvt.s.h : fcvt =Sd, Hn : 0001111011100010010000nnnnnddddd
fcvt.s.d : fcvt =Sd, Dn : 0001111001100010010000nnnnnddddd
fcvt.d.s : fcvt =Dd, Sn : 0001111000100010110000nnnnnddddd
scvtf.<t>.<g> : scvtf =<T>d, <G>n : F0011110Y100010000000nnnnnddddd : scalar_general
fcvtzs.<g>.<t> : fcvtzs =<G>d, <T>n : F0011110Y111000000000nnnnnddddd : scalar_general
fmov.w.s : fmov =Wd, Sn : 0001111000100110000000nnnnnddddd
fmov.s.w : fmov =Sd, Wn : 0001111000100111000000nnnnnddddd
fmov.x.d : fmov =Xd, Dn : 1001111001100110000000nnnnnddddd
fmov.d.x : fmov =Dd, Xn : 1001111001100111000000nnnnnddddd

# vectors and memory (C7.2)
ldr.<T> : ldr =<R>t, [Pn, #i*<B>] : Z111101O1iiiiiiiiiiiinnnnnttttt : memory
ldur.<T> : ldur =<R>t, [Pn, #+i] : Z111100O10iiiiiiiii00nnnnnttttt : memory
ldr.<T>.post : ldr =<R>t, [&Pn], #+i : Z111100O10iiiiiiiii01nnnnnttttt : memory
ldr.<T>.pre : ldr =<R>t, [&Pn, #+i]! : Z111100O10iiiiiiiii11nnnnnttttt : memory
ldr.<T>.register : ldr =<R>t, [Pn, Xm] : Z111100O11mmmmm011010nnnnnttttt : memory
ldr.<T>.scaled : ldr =<R>t, [Pn, Xm, lsl <B>] : Z111100O11mmmmm011110nnnnnttttt : memory_log
ldr.<T>.signed : ldr =<R>t, [Pn, Wm, sxtw] : Z111100O11mmmmm110010nnnnnttttt : memory
str.<T> : str <R>t, [Pn, #i*<B>] : Z111101O0iiiiiiiiiiiinnnnnttttt : memory
stur.<T> : stur <R>t, [Pn, #+i] : Z111100O00iiiiiiiii00nnnnnttttt : memory
str.<T>.post : str <R>t, [&Pn], #+i : Z111100O00iiiiiiiii01nnnnnttttt : memory
str.<T>.pre : str <R>t, [&Pn, #+i]! : Z111100O00iiiiiiiii11nnnnnttttt : memory
str.<T>.register : str <R>t, [Pn, Xm] : Z111100O01mmmmm011010nnnnnttttt : memory
str.<T>.scaled : str <R>t, [Pn, Xm, lsl <B>] : Z111100O01mmmmm011110nnnnnttttt : memory_log
str.<T>.signed : str <R>t, [Pn, Wm, sxtw] : Z111100O01mmmmm110010nnnnnttttt : memory
ldr.<T>.literal : ldr =<R>t, @i*4 : Z011100iiiiiiiiiiiiiiiiiiittttt : memory_pair
ldp.<T> : ldp =<R>t, =<R>u, [Pn, #+i*<B>] : Z10110101iiiiiiiuuuuunnnnnttttt : memory_pair
ldp.<T>.post : ldp =<R>t, =<R>u, [&Pn], #+i*<B> : Z10110011iiiiiiiuuuuunnnnnttttt : memory_pair
ldp.<T>.pre : ldp =<R>t, =<R>u, [&Pn, #+i*<B>]! : Z10110111iiiiiiiuuuuunnnnnttttt : memory_pair
stp.<T> : stp <R>t, <R>u, [Pn, #+i*<B>] : Z10110100iiiiiiiuuuuunnnnnttttt : memory_pair
stp.<T>.post : stp <R>t, <R>u, [&Pn], #+i*<B> : Z10110010iiiiiiiuuuuunnnnnttttt : memory_pair
stp.<T>.pre : stp <R>t, <R>u, [&Pn, #+i*<B>]! : Z10110110iiiiiiiuuuuunnnnnttttt : memory_pair
ld1.<T> : ld1 {=Vt.<T>}, [Pn] : 0Q001100010000000111Znnnnnttttt : whole_vector
ld1.<T>.post : ld1 {=Vt.<T>}, [&Pn], <S> : 0Q001100110111110111Znnnnnttttt : whole_vector
ld1.<T>.lane : ld1 {&Vt.<T>}[#<L>], [Pn] : 0q00110101000000CKnnnnnttttt : memory_lane
ld1.<T>.lane.post : ld1 {&Vt.<T>}[#<L>], [&Pn], <B> : 0q00110111011111CKnnnnnttttt : memory_lane
st1.<T> : st1 {Vt.<T>}, [Pn] : 0Q001100000000000111Znnnnnttttt : whole_vector
st1.<T>.post : st1 {Vt.<T>}, [&Pn], <S> : 0Q001100100111110111Znnnnnttttt : whole_vector
st1.<T>.lane : st1 {Vt.<T>}[#<L>], [Pn] : 0q00110100000000CKnnnnnttttt : memory_lane
st1.<T>.lane.post : st1 {Vt.<T>}[#<L>], [&Pn], <B> : 0q00110110011111CKnnnnnttttt : memory_lane
ld1r.<T> : ld1r {=Vt.<T>}, [Pn] : 0Q001101010000001100Znnnnnttttt : whole_vector
ld1r.<T>.post : ld1r {=Vt.<T>}, [&Pn], <B> : 0Q001101110111111100Znnnnnttttt : whole_vector

# general registers and memory (C6.2)
<M>.<T> : <M> =<G>t, [Pn, #i*<B>] : Z111001Oiiiiiiiiiiiinnnnnttttt : load
<U>.<T> : <U> =<G>t, [Pn, #+i] : Z111000O0iiiiiiiii00nnnnnttttt : load
<M>.<T>.post : <M> =<G>t, [&Pn], #+i : Z111000O0iiiiiiiii01nnnnnttttt : load
<M>.<T>.register : <M> =<G>t, [Pn, Xm] : Z111000O1mmmmm011010nnnnnttttt : load
<M>.<T> : <M> <G>t, [Pn, #i*<B>] : Z11100100iiiiiiiiiiiinnnnnttttt : store
<U>.<T> : <U> <G>t, [Pn, #+i] : Z111000000iiiiiiiii00nnnnnttttt : store
<M>.<T>.post : <M> <G>t, [&Pn], #+i : Z111000000iiiiiiiii01nnnnnttttt : store
<M>.<T>.register : <M> <G>t, [Pn, Xm] : Z111000001mmmmm011010nnnnnttttt : store
ldr.x.literal : ldr =Xt, @i*4 : 01011000iiiiiiiiiiiiiiiiiiittttt
ldp.x : ldp =Xt, =Xu, [Pn, #+i*8] : 1010100101iiiiiiiuuuuunnnnnttttt
ldp.x.post : ldp =Xt, =Xu, [&Pn], #+i*8 : 1010100011iiiiiiiuuuuunnnnnttttt
ldp.x.pre : ldp =Xt, =Xu, [&Pn, #+i*8]! : 1010100111iiiiiiiuuuuunnnnnttttt
stp.x : stp Xt, Xu, [Pn, #+i*8] : 1010100100iiiiiiiuuuuunnnnnttttt
stp.x.post : stp Xt, Xu, [&Pn], #+i*8 : 1010100010iiiiiiiuuuuunnnnnttttt
stp.x.pre : stp Xt, Xu, [&Pn, #+i*8]! : 1010100110iiiiiiiuuuuunnnnnttttt
prfm : prfm #o, [Pn, #i*8] : 1111100110iiiiiiiiiiiinnnnnooooo
prfum : prfum #o, [Pn, #+i] : 11111000100iiiiiiiii00nnnnnooooo
prfm.register : prfm #o, [Pn, Xm] : 11111000101mmmmm011010nnnnnooooo

# arithmetic of general registers (C6.2)
add.<g>.immediate : add =<A>d, <A>n, #i : F001000100iiiiiiiiiiiinnnnnddddd : general
add.<g>.pages : add =<A>d, <A>n, #i, lsl 12 : F001000101iiiiiiiiiiiinnnnnddddd : general
add.<g> : add =<G>d, <G>n, <G>m : F0001011000mmmmm000000nnnnnddddd : general
add.<g>.shifted : add =<G>d, <G>n, <G>m, lsl #i : F0001011000mmmmmSnnnnnddddd : shifted
sub.<g>.immediate : sub =<A>d, <A>n, #i : F101000100iiiiiiiiiiiinnnnnddddd : general
sub.<g>.pages : sub =<A>d, <A>n, #i, lsl 12 : F101000101iiiiiiiiiiiinnnnnddddd : general
sub.<g> : sub =<G>d, <G>n, <G>m : F1001011000mmmmm000000nnnnnddddd : general
sub.<g>.shifted : sub =<G>d, <G>n, <G>m, lsl #i : F1001011000mmmmmSnnnnnddddd : shifted
adds.<g>.immediate : adds =<G>d, <A>n, #i : F011000100iiiiiiiiiiiinnnnnddddd : general
adds.<g>.pages : adds =<G>d, <A>n, #i, lsl 12 : F011000101iiiiiiiiiiiinnnnnddddd : general
adds.<g> : adds =<G>d, <G>n, <G>m : F0101011000mmmmm000000nnnnnddddd : general
adds.<g>.shifted : adds =<G>d, <G>n, <G>m, lsl #i : F0101011000mmmmmSnnnnnddddd : shifted
subs.<g>.immediate : subs =<G>d, <A>n, #i : F111000100iiiiiiiiiiiinnnnnddddd : general
subs.<g>.pages : subs =<G>d, <A>n, #i, lsl 12 : F111000101iiiiiiiiiiiinnnnnddddd : general
subs.<g> : subs =<G>d, <G>n, <G>m : F1101011000mmmmm000000nnnnnddddd : general
subs.<g>.shifted : subs =<G>d, <G>n, <G>m, lsl #i : F1101011000mmmmmSnnnnnddddd : shifted
add.x.signed : add =Pd, Pn, Wm, sxtw #i : 10001011001mmmmm1100iinnnnnddddd
add.x.stack : add =Pd, Pn, Xm, uxtx #i : 10001011001mmmmm0110iinnnnnddddd
sub.x.signed : sub =Pd, Pn, Wm, sxtw #i : 11001011001mmmmm1100iinnnnnddddd
sub.x.stack : sub =Pd, Pn, Xm, uxtx #i : 11001011001mmmmm0110iinnnnnddddd
cmp.<g>.immediate : cmp <A>n, #i : F111000100iiiiiiiiiiiinnnnn11111 : general
cmp.<g> : cmp <G>n, <G>m : F1101011000mmmmm000000nnnnn11111 : general
cmn.<g>.immediate : cmn <A>n, #i : F011000100iiiiiiiiiiiinnnnn11111 : general
and.<g> : and =<G>d, <G>n, <G>m : F0001010000mmmmm000000nnnnnddddd : general
and.<g>.shifted : and =<G>d, <G>n, <G>m, lsl #i : F0001010000mmmmmSnnnnnddddd : shifted
orr.<g> : orr =<G>d, <G>n, <G>m : F0101010000mmmmm000000nnnnnddddd : general
orr.<g>.shifted : orr =<G>d, <G>n, <G>m, lsl #i : F0101010000mmmmmSnnnnnddddd : shifted
eor.<g> : eor =<G>d, <G>n, <G>m : F1001010000mmmmm000000nnnnnddddd : general
eor.<g>.shifted : eor =<G>d, <G>n, <G>m, lsl #i : F1001010000mmmmmSnnnnnddddd : shifted
ands.<g> : ands =<G>d, <G>n, <G>m : F1101010000mmmmm000000nnnnnddddd : general
ands.<g>.shifted : ands =<G>d, <G>n, <G>m, lsl #i : F1101010000mmmmmSnnnnnddddd : shifted
bic.<g> : bic =<G>d, <G>n, <G>m : F0001010001mmmmm000000nnnnnddddd : general
bic.<g>.shifted : bic =<G>d, <G>n, <G>m, lsl #i : F0001010001mmmmmSnnnnnddddd : shifted
orn.<g> : orn =<G>d, <G>n, <G>m : F0101010001mmmmm000000nnnnnddddd : general
orn.<g>.shifted : orn =<G>d, <G>n, <G>m, lsl #i : F0101010001mmmmmSnnnnnddddd : shifted
and.<g>.immediate : and =<A>d, <G>n, #<N>&<B> : F00100100Mrrrrrrssssssnnnnnddddd : logical
orr.<g>.immediate : orr =<A>d, <G>n, #<N>&<B> : F01100100Mrrrrrrssssssnnnnnddddd : logical
eor.<g>.immediate : eor =<A>d, <G>n, #<N>&<B> : F10100100Mrrrrrrssssssnnnnnddddd : logical
ands.<g>.immediate : ands =<G>d, <G>n, #<N>&<B> : F11100100Mrrrrrrssssssnnnnnddddd : logical
tst.<g> : tst <G>n, <G>m : F1101010000mmmmm000000nnnnn11111 : general
tst.<g>.immediate : tst <G>n, #<N>&<B> : F11100100Mrrrrrrssssssnnnnn11111 : logical
mov.<g> : mov =<G>d, <G>m : F0101010000mmmmm00000011111ddddd : general
movz.<g> : movz =<G>d, #i, lsl #h*16 : F10100101Uiiiiiiiiiiiiiiiiddddd : moved
movn.<g> : movn =<G>d, #i, lsl #h*16 : F00100101Uiiiiiiiiiiiiiiiiddddd : moved
movk.<g> : movk &<G>d, #i, lsl #h*16 : F11100101Uiiiiiiiiiiiiiiiiddddd : moved
madd.<g> : madd =<G>d, <G>n, <G>m, <G>a : F0011011000mmmmm0aaaaannnnnddddd : general
msub.<g> : msub =<G>d, <G>n, <G>m, <G>a : F0011011000mmmmm1aaaaannnnnddddd : general
mul.<g> : mul =<G>d, <G>n, <G>m : F0011011000mmmmm011111nnnnnddddd : general
smull : smull =Xd, Wn, Wm : 10011011001mmmmm011111nnnnnddddd
umull : umull =Xd, Wn, Wm : 10011011101mmmmm011111nnnnnddddd
smulh : smulh =Xd, Xn, Xm : 10011011010mmmmm011111nnnnnddddd
umulh : umulh =Xd, Xn, Xm : 10011011110mmmmm011111nnnnnddddd
udiv.<g> : udiv =<G>d, <G>n, <G>m : F0011010110mmmmm000010nnnnnddddd : general
sdiv.<g> : sdiv =<G>d, <G>n, <G>m : F0011010110mmmmm000011nnnnnddddd : general
lsl.<g> : lsl =<G>d, <G>n, <G>m : F0011010110mmmmm001000nnnnnddddd : general
lsr.<g> : lsr =<G>d, <G>n, <G>m : F0011010110mmmmm001001nnnnnddddd : general
asr.<g> : asr =<G>d, <G>n, <G>m : F0011010110mmmmm001010nnnnnddddd : general
lsl.<g>.immediate : lsl =<G>d, <G>n, #rs<<<B> : F10100110FSnnnnnddddd : bits
lsr.x.immediate : lsr =Xd, Xn, #r : 1101001101rrrrrr111111nnnnnddddd
lsr.w.immediate : lsr =Wd, Wn, #r : 01010011000rrrrr011111nnnnnddddd
asr.x.immediate : asr =Xd, Xn, #r : 1001001101rrrrrr111111nnnnnddddd
asr.w.immediate : asr =Wd, Wn, #r : 00010011000rrrrr011111nnnnnddddd
sxtw : sxtw =Xd, Wn : 1001001101000000011111nnnnnddddd
uxtb : uxtb =Wd, Wn : 0101001100000000000111nnnnnddddd
uxth : uxth =Wd, Wn : 0101001100000000001111nnnnnddddd
ubfm.x : ubfm =Xd, Xn, #r, #s : 1101001101rrrrrrssssssnnnnnddddd
sbfm.x : sbfm =Xd, Xn, #r, #s : 1001001101rrrrrrssssssnnnnnddddd
clz.<g> : clz =<G>d, <G>n : F101101011000000000100nnnnnddddd : general
rbit.<g> : rbit =<G>d, <G>n : F101101011000000000000nnnnnddddd : general
csel.<g> : csel =<G>d, <G>n, <G>m, ?c : F0011010100mmmmmcccc00nnnnnddddd : general
csinc.<g> : csinc =<G>d, <G>n, <G>m, ?c : F0011010100mmmmmcccc01nnnnnddddd : general
csinv.<g> : csinv =<G>d, <G>n, <G>m, ?c : F1011010100mmmmmcccc00nnnnnddddd : general
csneg.<g> : csneg =<G>d, <G>n, <G>m, ?c : F1011010100mmmmmcccc01nnnnnddddd : general
cset.<g> : cset =<G>d, ?!c : F001101010011111cccc0111111ddddd : general
csetm.<g> : csetm =<G>d, ?!c : F101101010011111cccc0011111ddddd : general

# jumps (C6.2)
adr : adr =Xd, @il : 0ll10000iiiiiiiiiiiiiiiiiiiddddd
b : b @i*4 : 000101iiiiiiiiiiiiiiiiiiiiiiiiii
bl : bl @i*4 : 100101iiiiiiiiiiiiiiiiiiiiiiiiii
b.condition : b.?c @i*4 : 01010100iiiiiiiiiiiiiiiiiii0cccc
cbz.<g> : cbz <G>t, @i*4 : F0110100iiiiiiiiiiiiiiiiiiittttt : general
cbnz.<g> : cbnz <G>t, @i*4 : F0110101iiiiiiiiiiiiiiiiiiittttt : general
tbz : tbz Xt, #hb, @i*4 : h0110110bbbbbiiiiiiiiiiiiiittttt
tbnz : tbnz Xt, #hb, @i*4 : h0110111bbbbbiiiiiiiiiiiiiittttt
br : br Xn : 1101011000011111000000nnnnn00000
blr : blr Xn : 1101011000111111000000nnnnn00000
ret : ret Xn : 1101011001011111000000nnnnn00000

# exclusive and ordered accesses (C6.2)
ldxr.<T> : ldxr =<G>t, [Pn] : Z00100001011111011111nnnnnttttt : whole
ldaxr.<T> : ldaxr =<G>t, [Pn] : Z00100001011111111111nnnnnttttt : whole
ldar.<T> : ldar =<G>t, [Pn] : Z00100011011111111111nnnnnttttt : whole
stxr.<T> : stxr =Ws, <G>t, [Pn] : Z001000000sssss011111nnnnnttttt : whole
stlxr.<T> : stlxr =Ws, <G>t, [Pn] : Z001000000sssss111111nnnnnttttt : whole
stlr.<T> : stlr <G>t, [Pn] : Z00100010011111111111nnnnnttttt : whole

# the system (C5, C6.2)
svc : svc #i : 11010100000iiiiiiiiiiiiiiii00001
brk : brk #i : 11010100001iiiiiiiiiiiiiiii00000
nop : nop : 11010101000000110010000000011111
yield : yield : 11010101000000110010000000111111
wfe : wfe : 11010101000000110010000001011111
sev : sev : 11010101000000110010000010011111
isb : isb : 11010101000000110011111111011111
clrex : clrex : 11010101000000110011111101011111
dmb.ish : dmb ish : 11010101000000110011101110111111
dmb.ishld : dmb ishld : 11010101000000110011100110111111
dmb.ishst : dmb ishst : 11010101000000110011101010111111
dsb.ish : dsb ish : 11010101000000110011101110011111
dc.cvau : dc cvau, Xt : 110101010000101101111011001ttttt
dc.civac : dc civac, Xt : 110101010000101101111110001ttttt
ic.ivau : ic ivau, Xt : 110101010000101101110101001ttttt
mrs.cntvct_el0 : mrs =Xt, cntvct_el0 : 110101010011101111100000010ttttt
mrs.cntfrq_el0 : mrs =Xt, cntfrq_el0 : 110101010011101111100000000ttttt
mrs.ctr_el0 : mrs =Xt, ctr_el0 : 110101010011101100000000001ttttt
mrs.dczid_el0 : mrs =Xt, dczid_el0 : 110101010011101100000000111ttttt
mrs.fpcr : mrs =Xt, fpcr : 110101010011101101000100000ttttt
mrs.midr_el1 : mrs =Xt, midr_el1 : 110101010011100000000000000ttttt
mrs.tpidr_el0 : mrs =Xt, tpidr_el0 : 110101010011101111010000010ttttt
msr.fpcr : msr fpcr, Xt : 110101010001101101000100000ttttt
""",
    "asimdhp": """
# arithmetic of f16 (C7.2)
fmla.<T> : fmla &Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110010mmmmm000011nnnnnddddd : half
fmls.<T> : fmls &Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110110mmmmm000011nnnnnddddd : half
fadd.<T> : fadd =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110010mmmmm000101nnnnnddddd : half
fsub.<T> : fsub =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110110mmmmm000101nnnnnddddd : half
fmul.<T> : fmul =Vd.<T>, Vn.<T>, Vm.<T> : 0Q101110010mmmmm000111nnnnnddddd : half
fdiv.<T> : fdiv =Vd.<T>, Vn.<T>, Vm.<T> : 0Q101110010mmmmm001111nnnnnddddd : half
fmax.<T> : fmax =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110010mmmmm001101nnnnnddddd : half
fmin.<T> : fmin =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110110mmmmm001101nnnnnddddd : half
fmaxnm.<T> : fmaxnm =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110010mmmmm000001nnnnnddddd : half
fminnm.<T> : fminnm =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110110mmmmm000001nnnnnddddd : half
faddp.<T> : faddp =Vd.<T>, Vn.<T>, Vm.<T> : 0Q101110010mmmmm000101nnnnnddddd : half
fmaxp.<T> : fmaxp =Vd.<T>, Vn.<T>, Vm.<T> : 0Q101110010mmmmm001101nnnnnddddd : half
fminp.<T> : fminp =Vd.<T>, Vn.<T>, Vm.<T> : 0Q101110110mmmmm001101nnnnnddddd : half
fcmeq.<T> : fcmeq =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110010mmmmm001001nnnnnddddd : half
fcmge.<T> : fcmge =Vd.<T>, Vn.<T>, Vm.<T> : 0Q101110010mmmmm001001nnnnnddddd : half
fcmgt.<T> : fcmgt =Vd.<T>, Vn.<T>, Vm.<T> : 0Q101110110mmmmm001001nnnnnddddd : half
fabd.<T> : fabd =Vd.<T>, Vn.<T>, Vm.<T> : 0Q101110110mmmmm000101nnnnnddddd : half
frecps.<T> : frecps =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110010mmmmm001111nnnnnddddd : half
frsqrts.<T> : frsqrts =Vd.<T>, Vn.<T>, Vm.<T> : 0Q001110110mmmmm001111nnnnnddddd : half
fabs.<T> : fabs =Vd.<T>, Vn.<T> : 0Q00111011111000111110nnnnnddddd : half
fneg.<T> : fneg =Vd.<T>, Vn.<T> : 0Q10111011111000111110nnnnnddddd : half
fsqrt.<T> : fsqrt =Vd.<T>, Vn.<T> : 0Q10111011111001111110nnnnnddddd : half
frintn.<T> : frintn =Vd.<T>, Vn.<T> : 0Q00111001111001100010nnnnnddddd : half
frintm.<T> : frintm =Vd.<T>, Vn.<T> : 0Q00111001111001100110nnnnnddddd : half
frintp.<T> : frintp =Vd.<T>, Vn.<T> : 0Q00111011111001100010nnnnnddddd : half
frintz.<T> : frintz =Vd.<T>, Vn.<T> : 0Q00111011111001100110nnnnnddddd : half
frinta.<T> : frinta =Vd.<T>, Vn.<T> : 0Q10111001111001100010nnnnnddddd : half
frinti.<T> : frinti =Vd.<T>, Vn.<T> : 0Q10111011111001100110nnnnnddddd : half
frintx.<T> : frintx =Vd.<T>, Vn.<T> : 0Q10111001111001100110nnnnnddddd : half
fcvtns.<T> : fcvtns =Vd.<T>, Vn.<T> : 0Q00111001111001101010nnnnnddddd : half
fcvtnu.<T> : fcvtnu =Vd.<T>, Vn.<T> : 0Q10111001111001101010nnnnnddddd : half
fcvtms.<T> : fcvtms =Vd.<T>, Vn.<T> : 0Q00111001111001101110nnnnnddddd : half
fcvtps.<T> : fcvtps =Vd.<T>, Vn.<T> : 0Q00111011111001101010nnnnnddddd : half
fcvtas.<T> : fcvtas =Vd.<T>, Vn.<T> : 0Q00111001111001110010nnnnnddddd : half
fcvtzs.<T> : fcvtzs =Vd.<T>, Vn.<T> : 0Q00111011111001101110nnnnnddddd : half
fcvtzu.<T> : fcvtzu =Vd.<T>, Vn.<T> : 0Q10111011111001101110nnnnnddddd : half
scvtf.<T> : scvtf =Vd.<T>, Vn.<T> : 0Q00111001111001110110nnnnnddddd : half
ucvtf.<T> : ucvtf =Vd.<T>, Vn.<T> : 0Q10111001111001110110nnnnnddddd : half
frecpe.<T> : frecpe =Vd.<T>, Vn.<T> : 0Q00111011111001110110nnnnnddddd : half
frsqrte.<T> : frsqrte =Vd.<T>, Vn.<T> : 0Q10111011111001110110nnnnnddddd : half
fmla.<T>.lane : fmla &Vd.<T>, Vn.<T>, Vm.h[#hlk] : 0Q00111100lkmmmm0001h0nnnnnddddd : half
fmls.<T>.lane : fmls &Vd.<T>, Vn.<T>, Vm.h[#hlk] : 0Q00111100lkmmmm0101h0nnnnnddddd : half
fmul.<T>.lane : fmul =Vd.<T>, Vn.<T>, Vm.h[#hlk] : 0Q00111100lkmmmm1001h0nnnnnddddd : half
fmov.<T>.immediate : fmov =Vd.<T>, #ag~ : 0Q00111100000aaa111111gggggddddd : half
""",
    "asimdfhm": """
# products of f16 added to f32 (C7.2)
fmlal.<W> : fmlal &Vd.<W>, Vn.<T>, Vm.<T> : 0Q001110001mmmmm111011nnnnnddddd : products
fmlal2.<W> : fmlal2 &Vd.<W>, Vn.<T>, Vm.<T> : 0Q101110001mmmmm110011nnnnnddddd : products
fmlal.<W>.lane : fmlal &Vd.<W>, Vn.<T>, Vm.h[#hlk] : 0Q00111110lkmmmm0000h0nnnnnddddd : products
fmlal2.<W>.lane : fmlal2 &Vd.<W>, Vn.<T>, Vm.h[#hlk] : 0Q10111110lkmmmm1000h0nnnnnddddd : products
""",
    "asimddp": """
# sums of four products of bytes (C7.2)
sdot.<W> : sdot &Vd.<W>, Vn.<T>, Vm.<T> : 0Q001110100mmmmm100101nnnnnddddd : dot
sdot.<W>.lane : sdot &Vd.<W>, Vn.<T>, Vm.4b[#hl] : 0Q00111110lmmmmm1110h0nnnnnddddd : dot
udot.<W> : udot &Vd.<W>, Vn.<T>, Vm.<T> : 0Q101110100mmmmm100101nnnnnddddd : dot
udot.<W>.lane : udot &Vd.<W>, Vn.<T>, Vm.4b[#hl] : 0Q10111110lmmmmm1110h0nnnnnddddd : dot
""",
    "i8mm": """
# products of matrices of bytes, and of bytes with and without a sign (C7.2)
smmla.4s : smmla &Vd.4s, Vn.16b, Vm.16b : 01001110100mmmmm101001nnnnnddddd
ummla.4s : ummla &Vd.4s, Vn.16b, Vm.16b : 01101110100mmmmm101001nnnnnddddd
usmmla.4s : usmmla &Vd.4s, Vn.16b, Vm.16b : 01001110100mmmmm101011nnnnnddddd
usdot.<W> : usdot &Vd.<W>, Vn.<T>, Vm.<T> : 0Q001110100mmmmm100111nnnnnddddd : dot
usdot.<W>.lane : usdot &Vd.<W>, Vn.<T>, Vm.4b[#hl] : 0Q00111110lmmmmm1111h0nnnnnddddd : dot
sudot.<W>.lane : sudot &Vd.<W>, Vn.<T>, Vm.4b[#hl] : 0Q00111100lmmmmm1111h0nnnnnddddd : dot
""",
    "bf16": """
# bf16 (C7.2)
bfdot.<W> : bfdot &Vd.<W>, Vn.<T>, Vm.<T> : 0Q101110010mmmmm111111nnnnnddddd : dot_halves
bfdot.<W>.lane : bfdot &Vd.<W>, Vn.<T>, Vm.2h[#hl] : 0Q00111101lmmmmm1111h0nnnnnddddd : dot_halves
bfmmla.4s : bfmmla &Vd.4s, Vn.8h, Vm.8h : 01101110010mmmmm111011nnnnnddddd
bfmlalb.4s : bfmlalb &Vd.4s, Vn.8h, Vm.8h : 00101110110mmmmm111111nnnnnddddd
bfmlalt.4s : bfmlalt &Vd.4s, Vn.8h, Vm.8h : 01101110110mmmmm111111nnnnnddddd
bfmlalb.4s.lane : bfmlalb &Vd.4s, Vn.8h, Vm.h[#hlk] : 0000111111lkmmmm1111h0nnnnnddddd
bfmlalt.4s.lane : bfmlalt &Vd.4s, Vn.8h, Vm.h[#hlk] : 0100111111lkmmmm1111h0nnnnnddddd
bfcvtn.<T> : bfcvtn<P> <K>Vd.<T>, Vn.4s : 0Q00111010100001011010nnnnnddddd : halves
bfcvt : bfcvt =Hd, Sn : 0001111001100011010000nnnnnddddd
""",
    "atomics": """
# single instructions that read and write memory (C6.2)
ldadd.<T> : ldadd <G>s, =<G>t, [Pn] : Z111000001sssss000000nnnnnttttt : whole
swp.<T> : swp <G>s, =<G>t, [Pn] : Z111000001sssss100000nnnnnttttt : whole
cas.<T> : cas &<G>s, <G>t, [Pn] : Z001000101sssss011111nnnnnttttt : whole
ldadda.<T> : ldadda <G>s, =<G>t, [Pn] : Z111000101sssss000000nnnnnttttt : whole
swpa.<T> : swpa <G>s, =<G>t, [Pn] : Z111000101sssss100000nnnnnttttt : whole
casa.<T> : casa &<G>s, <G>t, [Pn] : Z001000111sssss011111nnnnnttttt : whole
ldaddl.<T> : ldaddl <G>s, =<G>t, [Pn] : Z111000011sssss000000nnnnnttttt : whole
swpl.<T> : swpl <G>s, =<G>t, [Pn] : Z111000011sssss100000nnnnnttttt : whole
casl.<T> : casl &<G>s, <G>t, [Pn] : Z001000101sssss111111nnnnnttttt : whole
ldaddal.<T> : ldaddal <G>s, =<G>t, [Pn] : Z111000111sssss000000nnnnnttttt : whole
swpal.<T> : swpal <G>s, =<G>t, [Pn] : Z111000111sssss100000nnnnnttttt : whole
casal.<T> : casal &<G>s, <G>t, [Pn] : Z001000111sssss111111nnnnnttttt : whole
""",
}
"""The lines, by the feature that a CPU needs for them, as /proc/cpuinfo of Linux calls it; every
AArch64 CPU of a desktop, a phone or a server has "asimd" (NEON)."""
