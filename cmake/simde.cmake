# The AVX-512 kernels for machines without AVX-512, for the conformance tests only: kernels/cpu once
# more, with every intrinsic spelt out by SIMDe (Debian: libsimde-dev). The variant is "avx512_simde";
# tests/support/weights.c adds it to the kernels under test where PKV_TEST_SIMDE is defined.
if(PKV_SANITIZE OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    return()
endif()
find_path(SIMDE_INCLUDE simde/x86/avx512.h)
file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cpu/*.c)
if(NOT SIMDE_INCLUDE OR NOT sources)
    return()
endif()
add_library(pivotkv_avx512_simde OBJECT ${sources})
target_include_directories(pivotkv_avx512_simde PRIVATE
    ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/include)
target_compile_definitions(pivotkv_avx512_simde PRIVATE _GNU_SOURCE
    PKV_ISA=avx512_simde PKV_ISA_AVX512=1 PKV_ISA_SIMDE=1)
# SIMDe is not ours to warn about. Optimised, linear.c alone would take half a minute to compile.
target_compile_options(pivotkv_avx512_simde PRIVATE -w -O0 -ffp-contract=off ${PKV_ISA_FLAGS_avx2}
    -include ${PROJECT_SOURCE_DIR}/tests/support/simde_avx512.h)
set_target_properties(pivotkv_avx512_simde PROPERTIES C_EXTENSIONS ON)
target_sources(pivotkv_test_support PRIVATE $<TARGET_OBJECTS:pivotkv_avx512_simde>)
target_compile_definitions(pivotkv_test_support PRIVATE PKV_TEST_SIMDE=1)
