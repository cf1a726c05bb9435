# The CUDA kernels on the CPU (tests/simt): kernels/cuda/*.cu once more, by g++, a fiber for each CUDA
# thread; then the conformance tests tests/kernel/test_<op>.c with them, three ways:
#   plain  as it is; asan  with ASan and UBSan; check  races, bounds and uninitialised reads
#          (tests/simt/check.cpp takes the place of libtsan)
# Needs g++ and the toolkit's headers, no GPU. CTest: simt.<op>.<build>, label simt.
include(CheckLanguage)
check_language(CXX)
find_path(PKV_CUDA_HEADERS cuda_runtime.h HINTS ${CUDAToolkit_INCLUDE_DIRS} $ENV{CUDA_HOME}/include
    /usr/local/cuda/include)
if(NOT PKV_CUDA OR PKV_SANITIZE OR PKV_FUZZ OR NOT PKV_CUDA_HEADERS OR NOT CMAKE_CXX_COMPILER)
    return()
endif()
enable_language(CXX)
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL GNU OR CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
    return()
endif()

set(PKV_SIMT_FLAGS_plain -O2)
set(PKV_SIMT_FLAGS_asan -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all
    -fno-omit-frame-pointer)
set(PKV_SIMT_FLAGS_check -O2 -g)
# Calls at every access, none linked in: libtsan would know nothing of blocks and warps.
set(PKV_SIMT_KERNEL_FLAGS_check -O1 -fsanitize=thread -Wno-tsan
    --param tsan-instrument-func-entry-exit=0)
set(PKV_SIMT_LINK_asan -fsanitize=address,undefined)

function(pkv_simt_defaults target build)
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include
        ${PROJECT_BINARY_DIR}/include ${PROJECT_SOURCE_DIR}/tests/simt)
    target_include_directories(${target} SYSTEM PRIVATE ${PKV_CUDA_HEADERS})
    target_compile_definitions(${target} PRIVATE _GNU_SOURCE PKV_TEST_CUDA=1)
    target_compile_options(${target} PRIVATE ${PKV_SIMT_FLAGS_${build}} -ffp-contract=off
        -Wall -Wextra -Wshadow -Wconversion $<$<BOOL:${PKV_WERROR}>:-Werror>)
    set_target_properties(${target} PROPERTIES CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON)
endfunction()

file(GLOB kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu)
set(PKV_SIMT_KERNELS)
set(PKV_SIMT_OPS)
foreach(kernel ${kernels})
    get_filename_component(op ${kernel} NAME_WE)
    list(APPEND PKV_SIMT_OPS ${op})
    # A name that CMake takes for C++: the same file is CUDA in the library.
    set(source ${PROJECT_BINARY_DIR}/simt/${op}.cpp)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"kernels/cuda/${op}.cu\"\n")
    list(APPEND PKV_SIMT_KERNELS ${source})
endforeach()
file(GLOB engine CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/simt/*.cpp)
list(FILTER engine EXCLUDE REGEX "/(check|mistakes|mistakes_kernels)\\.cpp$")

foreach(build plain asan check)
    add_library(simt_engine_${build} OBJECT ${engine} ${PROJECT_SOURCE_DIR}/kernels/cuda/cuda_check.c
        ${PROJECT_SOURCE_DIR}/kernels/cuda/cuda_table.c ${PROJECT_SOURCE_DIR}/tests/support/cuda_variant.c
        ${PROJECT_SOURCE_DIR}/tests/support/kernel_test.c)
    if(build STREQUAL check)
        target_sources(simt_engine_${build} PRIVATE ${PROJECT_SOURCE_DIR}/tests/simt/check.cpp)
    endif()
    add_library(simt_kernels_${build} OBJECT ${PKV_SIMT_KERNELS})
    pkv_simt_defaults(simt_engine_${build} ${build})
    pkv_simt_defaults(simt_kernels_${build} ${build})
    target_compile_options(simt_kernels_${build} PRIVATE ${PKV_SIMT_KERNEL_FLAGS_${build}}
        -Wno-shadow -Wno-conversion -Wno-unknown-pragmas) # nvcc's warnings are those that count
endforeach()

# pkv_add_simt_program(NAME BUILD SOURCES...): linked with the engine in place of the CUDA runtime.
function(pkv_add_simt_program name build)
    add_executable(${name} ${ARGN} $<TARGET_OBJECTS:simt_engine_${build}>)
    pkv_simt_defaults(${name} ${build})
    set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX ENABLE_EXPORTS ON
        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    target_link_options(${name} PRIVATE ${PKV_SIMT_LINK_${build}})
    target_link_libraries(${name} PRIVATE pivotkv_test_support)
endfunction()

function(pkv_add_simt_test name program)
    add_test(NAME ${name} COMMAND bash ${PROJECT_SOURCE_DIR}/tests/simt/run.sh ${program} ${ARGN})
    set_tests_properties(${name} PROPERTIES LABELS simt TIMEOUT ${PKV_TEST_TIMEOUT}
        ENVIRONMENT "${PKV_TEST_ENVIRONMENT}")
endfunction()

# What runs: <order>:<seed>, several of them where a run is cheap.
set(PKV_SIMT_RUNS_plain in_order:0 random:1 priority:2)
set(PKV_SIMT_RUNS_asan mixed:1)
set(PKV_SIMT_RUNS_check mixed:1)
# Kernels whose cases stand in another one's file: parts of attend; embed in test_linear.c.
set(PKV_SIMT_TESTED_ELSEWHERE attend_bf16 attend_f16 attend_q8 embed)
set(PKV_SIMT_RUNS_attend mixed:1) # 15 s a run
foreach(op ${PKV_SIMT_OPS})
    set(source ${PROJECT_SOURCE_DIR}/tests/kernel/test_${op}.c)
    if(NOT EXISTS ${source})
        if(NOT op IN_LIST PKV_SIMT_TESTED_ELSEWHERE)
            message(FATAL_ERROR "kernels/cuda/${op}.cu has no tests/kernel/test_${op}.c: write it, or name "
                "the kernel in PKV_SIMT_TESTED_ELSEWHERE (cmake/simt.cmake) and where it is tested")
        endif()
        continue()
    endif()
    foreach(build plain asan check)
        pkv_add_simt_program(simt_${op}_${build} ${build} ${source} $<TARGET_OBJECTS:simt_kernels_${build}>)
        set(runs ${PKV_SIMT_RUNS_${build}})
        if(PKV_SIMT_RUNS_${op})
            set(runs ${PKV_SIMT_RUNS_${op}})
        endif()
        pkv_add_simt_test(simt.${op}.${build} $<TARGET_FILE:simt_${op}_${build}> ${runs})
    endforeach()
endforeach()

# What the shim must notice itself: one program, a mistake a run.
set(PKV_SIMT_MISTAKES)
foreach(build plain asan check)
    add_library(simt_mistakes_kernels_${build} OBJECT ${PROJECT_SOURCE_DIR}/tests/simt/mistakes_kernels.cpp)
    pkv_simt_defaults(simt_mistakes_kernels_${build} ${build})
    target_compile_options(simt_mistakes_kernels_${build} PRIVATE ${PKV_SIMT_KERNEL_FLAGS_${build}})
    pkv_add_simt_program(simt_mistakes_${build} ${build} ${PROJECT_SOURCE_DIR}/tests/simt/mistakes.cpp
        $<TARGET_OBJECTS:simt_mistakes_kernels_${build}> $<TARGET_OBJECTS:simt_kernels_${build}>)
    list(APPEND PKV_SIMT_MISTAKES $<TARGET_FILE:simt_mistakes_${build}>)
endforeach()
if(Python3_FOUND)
    foreach(table kernels host)
        add_test(NAME simt.mistakes_${table} COMMAND ${Python3_EXECUTABLE}
            ${PROJECT_SOURCE_DIR}/tests/simt/test_mistakes.py ${table} ${PKV_SIMT_MISTAKES})
        set_tests_properties(simt.mistakes_${table} PROPERTIES LABELS simt TIMEOUT ${PKV_TEST_TIMEOUT})
    endforeach()
endif()
