# pkv_target_defaults(TARGET): warnings, sanitizers, include folders of everything we compile.
function(pkv_target_defaults target)
    target_include_directories(${target} PRIVATE
        ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/include)
    target_compile_definitions(${target} PRIVATE _GNU_SOURCE)
    # One result whatever the compiler: only explicit fused multiply-adds.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C>:-ffp-contract=off
        -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes
        -Wvla -Wundef>)
    # Instrumented code makes gcc warn of what is not there.
    if(PKV_WERROR AND NOT PKV_SANITIZE)
        target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C>:-Werror>)
    endif()
    if(PKV_SANITIZE)
        target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C>:-fsanitize=${PKV_SANITIZE}
            -fno-omit-frame-pointer -fno-sanitize-recover=all>)
        target_link_options(${target} PRIVATE -fsanitize=${PKV_SANITIZE})
    endif()
    if(PKV_FUZZ)
        target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
    endif()
endfunction()
