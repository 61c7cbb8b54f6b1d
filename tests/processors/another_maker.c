/*
 * Makes a program take this machine's processor for one of another maker.
 *
 * A library that is loaded before all others (LD_PRELOAD). It asks the kernel to let every CPUID instruction fault,
 * and answers the fault itself: with what the processor says, but for the maker's name, the family (19h, Zen 4) and
 * the instructions that a processor of that family lacks. Libraries that choose their kernels by CPUID (oneMKL, oneDNN,
 * torch) then choose those for that maker; the silicon, and so what an instruction costs, stays what it is.
 *
 * Threads and forks inherit the faulting; a program that is started anew has it again through LD_PRELOAD.
 * A program ends at once, with status 77, where the kernel or the processor cannot do it.
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum {
    ARCH_SET_CPUID = 0x1012,
    ZEN_4 = 0x00a10f11,
    AMX_BF16 = 1 << 22,
    AVX512_FP16 = 1 << 23,
    AMX_TILE = 1 << 24,
    AMX_INT8 = 1 << 25,
    CANNOT = 77
};

/* Each maker tells of its caches in leaves of its own; of a cache of no bytes oneDNN makes wrong convolutions. */
enum {
    CACHES_OF_INTEL = 4,
    FIRST_CACHE_OF_AMD = (int)0x80000005,
    OTHER_CACHES_OF_AMD = (int)0x80000006,
    CACHE_32_KIB = 0x20080140,
    CACHE_1_MIB = 0x04006140,
    CACHE_32_MIB = 0x01009140
};

/* "AuthenticAMD", as CPUID spreads it over three registers. */
enum { AUTH = 0x68747541, ENTI = 0x69746e65, CAMD = 0x444d4163 };

typedef int set_action(int, const struct sigaction *, struct sigaction *);

/* Who shall see a fault that is not ours: the last that the program asked for. */
static struct sigaction program_action;

static long allow_cpuid(int allowed)
{
    return syscall(SYS_arch_prctl, ARCH_SET_CPUID, allowed);
}

static set_action *real_sigaction(void)
{
    static set_action *found;
    if (!found)
        found = (set_action *)dlsym(RTLD_NEXT, "sigaction");
    return found;
}

static void answer_cpuid(greg_t *registers)
{
    int leaf = registers[REG_RAX];
    unsigned eax = leaf;
    unsigned ecx = registers[REG_RCX];
    unsigned ebx;
    unsigned edx;

    allow_cpuid(1);
    __asm__ volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    allow_cpuid(0);
    if (leaf == 0 || leaf == (int)0x80000000) {
        ebx = AUTH;
        edx = ENTI;
        ecx = CAMD;
    }
    if (leaf == 1)
        eax = ZEN_4;
    if (leaf == 7)
        edx &= ~(AMX_BF16 | AVX512_FP16 | AMX_TILE | AMX_INT8);
    if (leaf == CACHES_OF_INTEL)
        eax = 0;
    if (leaf == FIRST_CACHE_OF_AMD)
        ecx = edx = CACHE_32_KIB;
    if (leaf == OTHER_CACHES_OF_AMD) {
        ecx = CACHE_1_MIB;
        edx = CACHE_32_MIB;
    }
    registers[REG_RAX] = eax;
    registers[REG_RBX] = ebx;
    registers[REG_RCX] = ecx;
    registers[REG_RDX] = edx;
    registers[REG_RIP] += 2;
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;

    /* A forbidden instruction, unlike a bad address, comes from the kernel: then the instruction can be read. */
    if (info->si_code == SI_KERNEL && memcmp((void *)registers[REG_RIP], "\x0f\xa2", 2) == 0)
        answer_cpuid(registers);
    else if (program_action.sa_handler == SIG_DFL || program_action.sa_handler == SIG_IGN)
        real_sigaction()(SIGSEGV, &program_action, NULL);
    else if (program_action.sa_flags & SA_SIGINFO)
        program_action.sa_sigaction(number, info, context);
    else
        program_action.sa_handler(number);
}

/* A program that asks for faults (Python's faulthandler) gets all but ours. */
int sigaction(int number, const struct sigaction *action, struct sigaction *before)
{
    struct sigaction replaced = program_action;

    if (number != SIGSEGV)
        return real_sigaction()(number, action, before);
    if (action)
        program_action = *action;
    if (before)
        *before = replaced;
    return 0;
}

__sighandler_t signal(int number, __sighandler_t handler)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct sigaction before;

    return sigaction(number, &action, &before) ? SIG_ERR : before.sa_handler;
}

/* A thread that waits for all signals would be ended by one that it blocks. */
int pthread_sigmask(int how, const sigset_t *set, sigset_t *before)
{
    static int (*real)(int, const sigset_t *, sigset_t *);
    sigset_t others;

    if (!real)
        real = (int (*)(int, const sigset_t *, sigset_t *))dlsym(RTLD_NEXT, "pthread_sigmask");
    if (!set || how == SIG_UNBLOCK)
        return real(how, set, before);
    others = *set;
    sigdelset(&others, SIGSEGV);
    return real(how, &others, before);
}

/* Says, as 12 letters and a zero, what a program reads that asks for the maker. */
void processor_maker(char *name)
{
    unsigned eax = 0;
    unsigned ecx = 0;
    unsigned part[3];

    __asm__ volatile("cpuid" : "+a"(eax), "=b"(part[0]), "+c"(ecx), "=d"(part[1]));
    part[2] = ecx;
    memcpy(name, part, 12);
    name[12] = 0;
}

__attribute__((constructor)) static void begin(void)
{
    struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART};

    real_sigaction()(SIGSEGV, &ours, &program_action);
    if (allow_cpuid(0))
        _exit(CANNOT);
}
