/* replay.c: runs a fuzz target over the files of its corpus folder, where libFuzzer is not there.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int main(int argc, char **argv)
{
    unsigned count = 0;
    for (int i = 1; i < argc; i++) {
        DIR *folder = opendir(argv[i]);
        if (!folder) {
            fprintf(stderr, "replay: cannot open %s\n", argv[i]);
            return 1;
        }
        for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
            char path[4096];
            struct stat info;
            snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
            if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) {
                continue;
            }
            FILE *file = fopen(path, "rb");
            size_t room = (size_t)info.st_size;
            uint8_t *data = malloc(room ? room : 1);
            size_t bytes = file ? fread(data, 1, room, file) : 0;
            if (file) {
                fclose(file);
            }
            (void)LLVMFuzzerTestOneInput(data, bytes);
            free(data);
            count++;
        }
        closedir(folder);
    }
    printf("%u inputs replayed\n", count);
    return count ? 0 : 1;
}
