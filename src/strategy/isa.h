/* isa: the loops of a file once for each instruction set, and which of them to use.
 *
 * A file writes each loop as an INLINE function <name>_body, lists them in LOOPS(X, isa, target) as
 *
 *     X(isa, target, type, name, (parameters), (arguments))
 *
 * and says ISA_SETS, once. It then has the struct `loops` of pointers to them, and best_loops().
 * (As optim/rules.c does, which says why not by target_clones.) Only for .c files of strategy/. */
#ifndef TT_STRATEGY_ISA_H
#define TT_STRATEGY_ISA_H

typedef enum isa { ISA_ANY, ISA_AVX2, ISA_AVX512 } isa;

/* What codec_use said, or else the best this CPU has; in compress.c. Always ISA_ANY if it is no
 * x86-64, where there are no other sets. */
isa isa_now(void);

#define INLINE static inline __attribute__((always_inline))

#define ISA_FIELD(isa, target, type, name, params, args) type(*name) params;
#define ISA_ENTRY(isa, target, type, name, params, args) name##_##isa,
#define ISA_LOOP(isa, target, type, name, params, args)                                            \
    target static type name##_##isa params                                                         \
    {                                                                                              \
        return name##_body args;                                                                   \
    }
#define ISA_SET(isa, target)                                                                       \
    LOOPS(ISA_LOOP, isa, target)                                                                   \
    static const loops set_##isa = {LOOPS(ISA_ENTRY, isa, target)};

#ifdef __x86_64__
#define ISA_X86                                                                                    \
    ISA_SET(avx2, __attribute__((target("avx2"))))                                                 \
    ISA_SET(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))
#define ISA_LIST &set_any, &set_avx2, &set_avx512
#else
#define ISA_X86
#define ISA_LIST &set_any
#endif

#define ISA_SETS                                                                                   \
    typedef struct loops {                                                                         \
        LOOPS(ISA_FIELD, , )                                                                       \
    } loops;                                                                                       \
    ISA_SET(any, )                                                                                 \
    ISA_X86                                                                                        \
    static const loops *best_loops(void)                                                           \
    {                                                                                              \
        static const loops *const sets[] = {ISA_LIST}; /* in the order of the enum */              \
        return sets[isa_now()];                                                                    \
    }

#endif
