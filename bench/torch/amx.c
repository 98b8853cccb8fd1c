/* amx: shows AMX tiles to oneDNN in virtual machines that have them and do not describe them.
 *
 * Some hypervisors pass AMX through but answer leaf 0x1d of CPUID, which says how large tiles are,
 * with zeros. oneDNN believes it, sets up tiles of no size, and dies with SIGILL: so does PyTorch's
 * autocast to bfloat16. Loaded before oneDNN, this has the kernel fault on CPUID (arch_prctl,
 * inherited by threads), and answers that leaf by what all CPUs with AMX have so far: one palette,
 * 8 tiles of 16 rows of 64 bytes. All other leaves are the CPU's own.
 *
 * It does nothing where the leaf is right, where there is no AMX, and where the kernel cannot fault
 * on CPUID. For the benchmark alone: bench/run builds it. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { SET_CPUID = 0x1012 }; /* ARCH_SET_CPUID: 0 faults, 1 does not */
enum { TILES = 0x1d, PRODUCTS = 0x1e };

typedef struct leaf {
    unsigned a, b, c, d;
} leaf;

static leaf ask(unsigned number, unsigned sub)
{
    leaf l;
    __cpuid_count(number, sub, l.a, l.b, l.c, l.d);
    return l;
}

static leaf answer(unsigned number, unsigned sub)
{
    if (number == TILES && sub == 0) return (leaf){.a = 1}; /* the last palette */
    if (number == TILES && sub == 1)
        return (leaf){8 * 1024 | 1024 << 16, 64 | 8 << 16, 16, 0}; /* bytes; a row's, tiles; rows */
    if (number == PRODUCTS && sub == 0) return (leaf){.b = 16 | 64 << 8};
    return ask(number, sub);
}

static void on_fault(int sig, siginfo_t *info, void *context)
{
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *at = (const unsigned char *)r[REG_RIP];

    (void)info;
    if (at[0] != 0x0f || at[1] != 0xa2) { /* no CPUID: a true fault, which comes again */
        signal(sig, SIG_DFL);
        return;
    }
    syscall(SYS_arch_prctl, SET_CPUID, 1);
    leaf l = answer((unsigned)r[REG_RAX], (unsigned)r[REG_RCX]);
    syscall(SYS_arch_prctl, SET_CPUID, 0);
    r[REG_RAX] = l.a, r[REG_RBX] = l.b, r[REG_RCX] = l.c, r[REG_RDX] = l.d;
    r[REG_RIP] += 2;
}

__attribute__((constructor)) static void show_amx(void)
{
    struct sigaction act = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    const unsigned bf16 = 1u << 22; /* of leaf 7, d */

    if (ask(0, 0).a < 7 || !(ask(7, 0).d & bf16)) return;
    if (ask(0, 0).a >= TILES && ask(TILES, 0).a) return;
    sigaction(SIGSEGV, &act, NULL);
    syscall(SYS_arch_prctl, SET_CPUID, 0);
}
