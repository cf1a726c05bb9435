/* fake_root.c: see fake_root.h. */
#include "tests/support/fake_root.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/support/pkv_test.h"

static char root[256];

const char *pkvt_root_open(void)
{
    const char *folder = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/pivotkv-root-XXXXXX", folder ? folder : "/tmp");
    assert_non_null(mkdtemp(root));
    return root;
}

void pkvt_root_file(const char *path, const char *text)
{
    char name[1024];
    snprintf(name, sizeof name, "%s%s", root, path);
    for (char *slash = name + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        (void)mkdir(name, 0700);
        *slash = '/';
    }
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info;
    (void)kind;
    (void)place;
    return remove(path);
}

void pkvt_root_close(void)
{
    (void)nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
