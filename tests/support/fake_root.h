/* fake_root.h: a folder that stands for / in tests of what reads /proc and /sys. */
#ifndef PKV_TEST_FAKE_ROOT_H
#define PKV_TEST_FAKE_ROOT_H

/* A new empty folder below the temporary folder; removed by pkvt_root_close(). Static buffer. */
const char *pkvt_root_open(void);

/* Write a file below it, making its folders. */
void pkvt_root_file(const char *path, const char *text);
void pkvt_root_close(void);

#endif
