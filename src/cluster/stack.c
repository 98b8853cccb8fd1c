/* stack: what the function at an address is called.
 *
 * The dynamic linker knows the names that a library exports. Ours are hidden, and many are static:
 * those are in the symbol table of the file, if it was not stripped. Not for a signal handler. */
#define _GNU_SOURCE
#include "inner.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct image { /* a file of a program, in memory */
    const unsigned char *data;
    size_t size;
} image;

static bool is_within(const image *m, uint64_t at, uint64_t size)
{
    return at <= m->size && size <= m->size - at;
}

static image map_image(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    image m = {0};
    void *p;

    if (fd < 0) return m;
    if (!fstat(fd, &st) && st.st_size > (off_t)sizeof(Elf64_Ehdr) &&
        (p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0)) != MAP_FAILED)
        m = (image){p, (size_t)st.st_size};
    close(fd);
    return m;
}

/* The function of this table that holds the address, which is one of the file. */
static bool find_in(const image *m, const Elf64_Shdr *table, const Elf64_Shdr *names, uint64_t at,
                    char *out, size_t size)
{
    const Elf64_Sym *sym = (const void *)(m->data + table->sh_offset);
    const char *text = (const char *)m->data + names->sh_offset;

    for (uint64_t i = 0; i < table->sh_size / sizeof *sym; i++) {
        if (ELF64_ST_TYPE(sym[i].st_info) != STT_FUNC || at < sym[i].st_value ||
            at - sym[i].st_value >= sym[i].st_size || sym[i].st_name >= names->sh_size)
            continue;
        snprintf(out, size, "%.*s", (int)(names->sh_size - sym[i].st_name), text + sym[i].st_name);
        return true;
    }
    return false;
}

static bool find_name(const image *m, uint64_t base, uint64_t address, char *out, size_t size)
{
    const Elf64_Ehdr *e = (const void *)m->data;
    const Elf64_Shdr *s;

    if (!m->data || memcmp(e->e_ident, ELFMAG, SELFMAG) || e->e_ident[EI_CLASS] != ELFCLASS64 ||
        e->e_shentsize != sizeof *s || !is_within(m, e->e_shoff, e->e_shnum * sizeof *s))
        return false;
    s = (const void *)(m->data + e->e_shoff);
    for (int i = 0; i < e->e_shnum; i++)
        if (s[i].sh_type == SHT_SYMTAB && s[i].sh_link < e->e_shnum &&
            is_within(m, s[i].sh_offset, s[i].sh_size) &&
            is_within(m, s[s[i].sh_link].sh_offset, s[s[i].sh_link].sh_size) &&
            find_in(m, &s[i], &s[s[i].sh_link], e->e_type == ET_DYN ? address - base : address, out,
                    size))
            return true;
    return false;
}

void tt_function_name(const void *address, char *out, size_t size)
{
    Dl_info of = {0};
    const char *file, *slash;
    char name[256] = "";
    image m;

    if (!dladdr(address, &of) || !of.dli_fname) {
        snprintf(out, size, "%p", address);
        return;
    }
    file = *of.dli_fname ? of.dli_fname : "/proc/self/exe";
    if (of.dli_sname) {
        snprintf(name, sizeof name, "%s", of.dli_sname);
    } else {
        m = map_image(file);
        if (!find_name(&m, (uintptr_t)of.dli_fbase, (uintptr_t)address, name, sizeof name))
            snprintf(name, sizeof name, "+0x%llx",
                     (unsigned long long)((uintptr_t)address - (uintptr_t)of.dli_fbase));
        if (m.data) munmap((void *)(uintptr_t)m.data, m.size);
    }
    slash = strrchr(file, '/');
    snprintf(out, size, "%s in %s", name, slash ? slash + 1 : file);
}
