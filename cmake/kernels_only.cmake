# PKV_KERNELS_ONLY: the CPU kernels and their tests, without any library but libc. For machines to
# which the libraries have not been brought (cmake/aarch64.cmake); nothing here is installed.
file(GLOB sources CONFIGURE_DEPENDS kernels/*.c kernels/ref/*.c)
add_library(pivotkv_kernels STATIC ${sources} runtime/base/cgroup.c runtime/base/clock.c
    runtime/base/futex.c runtime/base/status.c runtime/base/thread.c
    tests/support/cuda_variant.c tests/support/hot_case.c tests/support/kernel_test.c tests/support/kv_case.c tests/support/pkv_test.c tests/support/recall_case.c
    tests/support/simde.c tests/support/weights.c)
pkv_target_defaults(pivotkv_kernels)
target_include_directories(pivotkv_kernels PUBLIC tests/support/cross)
pkv_add_isa_objects(PKV_KERNEL_OBJECTS)
target_sources(pivotkv_kernels PRIVATE ${PKV_KERNEL_OBJECTS})
target_compile_definitions(pivotkv_kernels PRIVATE ${PKV_ISA_DEFINITIONS})
target_link_libraries(pivotkv_kernels PUBLIC Threads::Threads m)

enable_testing()
file(GLOB tests CONFIGURE_DEPENDS tests/kernel/test_*.c)
foreach(source ${tests} tests/unit/test_pack.c tests/golden/test_dequant.c)
    get_filename_component(stem ${source} NAME_WE)
    string(REGEX REPLACE "^test_" "" stem ${stem})
    add_executable(kernel_${stem} ${source})
    pkv_target_defaults(kernel_${stem})
    target_compile_options(kernel_${stem} PRIVATE -O1) # at -O3 gcc 12 for aarch64 breaks on test_topk.c
    target_link_libraries(kernel_${stem} PRIVATE pivotkv_kernels)
    add_test(NAME kernel.${stem} COMMAND kernel_${stem})
    set_tests_properties(kernel.${stem} PROPERTIES TIMEOUT 900
        ENVIRONMENT "PIVOTKV_SOURCE=${PROJECT_SOURCE_DIR}")
endforeach()
