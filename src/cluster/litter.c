/* litter: files of MPICH in /dev/shm.
 *
 * All else that an MPI keeps there can be told to lie in a folder of ours, which goes with its
 * world. Where ranks of a host first meet MPICH makes a file with a name of its own, and removes it
 * when all have it mapped: a rank that is killed meanwhile leaves it for ever. So when a world has
 * ended, such files of ours that no process has are removed. */
#define _GNU_SOURCE
#include "inner.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char FOLDER[] = "/dev/shm", FRONT[] = "mpich_shar_tmp";

enum { MOST = 64 };

typedef struct file {
    char path[sizeof FOLDER + 300];
    bool used;
} file;

static void see_open(int process, file *files, int count)
{
    char folder[64], link[384], path[sizeof files->path];
    DIR *d;
    struct dirent *e;
    ssize_t n;

    snprintf(folder, sizeof folder, "/proc/%d/fd", process);
    if (!(d = opendir(folder))) return;
    while ((e = readdir(d))) {
        snprintf(link, sizeof link, "%s/%s", folder, e->d_name);
        if ((n = readlink(link, path, sizeof path - 1)) < 0) continue;
        path[n] = 0;
        for (int i = 0; i < count; i++) files[i].used |= !strcmp(path, files[i].path);
    }
    closedir(d);
}

static void see_mapped(int process, file *files, int count)
{
    char path[64], *line = NULL;
    size_t room = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/maps", process);
    if (!(f = fopen(path, "re"))) return;
    while (getline(&line, &room, f) > 0) {
        const char *name = strstr(line, FOLDER);
        for (int i = 0; name && i < count; i++) {
            size_t n = strlen(files[i].path);
            files[i].used |= !strncmp(name, files[i].path, n) && name[n] == '\n';
        }
    }
    free(line);
    fclose(f);
}

/* A file is open before it is mapped, and mapped before it is closed: looked at in this order it is
 * seen at any moment. */
static void see_processes(file *files, int count)
{
    DIR *d = opendir("/proc");
    struct dirent *e;

    if (!d) {
        for (int i = 0; i < count; i++) files[i].used = true;
        return;
    }
    while ((e = readdir(d))) {
        int process = atoi(e->d_name);
        if (process <= 0) continue;
        see_open(process, files, count);
        see_mapped(process, files, count);
    }
    closedir(d);
}

void tt_litter_sweep(void)
{
    file files[MOST];
    struct dirent *e;
    struct stat st;
    int count = 0;
    DIR *d = opendir(FOLDER);

    if (!d) return;
    while (count < MOST && (e = readdir(d))) {
        if (strncmp(e->d_name, FRONT, sizeof FRONT - 1)) continue;
        file *f = &files[count];
        *f = (file){.used = false};
        snprintf(f->path, sizeof f->path, "%s/%s", FOLDER, e->d_name);
        count += !lstat(f->path, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid();
    }
    closedir(d);
    if (count) see_processes(files, count);
    for (int i = 0; i < count; i++)
        if (!files[i].used) unlink(files[i].path);
}
