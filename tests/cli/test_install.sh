#!/usr/bin/env bash
# The install target: headers, both libraries, pkg-config and the CMake package are enough to build against,
# and the shared library exports pkv_ names only.
set -euo pipefail
source=${PIVOTKV_SOURCE:?} build=${PIVOTKV_BUILD:?}
if grep -qE '^PKV_SANITIZE:[A-Z]+=.+' "$build/CMakeCache.txt"; then
    echo "SKIP: a sanitized library is not for installing"
    exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cmake --install "$build" --prefix "$folder/prefix" >/dev/null
cat >"$folder/user.c" <<'C'
#include <pivotkv/pivotkv.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    struct pkv_tokenizer *tokenizer = NULL;
    if (pkv_tokenizer_open("/nonexistent.gguf", &tokenizer) != PKV_ERR_IO || !strstr(pkv_error_text(), "/nonexistent.gguf")) {
        return 1;
    }
    return printf("%s\n", pkv_version()) < 0;
}
C
libdir=$(dirname "$(find "$folder/prefix" -name pivotkv.pc)")
export PKG_CONFIG_PATH=$libdir
cc -std=c11 -Wall -Wextra -Werror "$folder/user.c" $(pkg-config --cflags --libs pivotkv) -o "$folder/shared"
LD_LIBRARY_PATH=$(pkg-config --variable=libdir pivotkv) "$folder/shared"
for example in "$source"/docs/examples/*.c; do
    cc -std=c11 -Wall -Wextra -Werror "$example" $(pkg-config --cflags --libs pivotkv) -o "$folder/example"
    LD_LIBRARY_PATH=$(pkg-config --variable=libdir pivotkv) "$folder/example"
done
cat >"$folder/CMakeLists.txt" <<'C'
cmake_minimum_required(VERSION 3.21)
project(user C)
find_package(pivotkv 0.1 REQUIRED)
add_executable(user_static user.c)
target_link_libraries(user_static PRIVATE pivotkv::pivotkv_static)
add_executable(user_shared user.c)
target_link_libraries(user_shared PRIVATE pivotkv::pivotkv_shared)
C
cmake -S "$folder" -B "$folder/build" -DCMAKE_PREFIX_PATH="$folder/prefix" >/dev/null
cmake --build "$folder/build" >/dev/null
"$folder/build/user_static"
"$folder/build/user_shared"
foreign=$(nm -D --defined-only "$(pkg-config --variable=libdir pivotkv)/libpivotkv.so" | awk '{print $3}' | grep -v '^pkv_' || true)
if [ -n "$foreign" ]; then
    echo "exported without pkv_: $foreign"
    exit 1
fi
