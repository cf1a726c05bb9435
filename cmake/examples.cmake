# docs/examples/*.c see the public headers and the library, no more; each is run as a test.
# tests/cli/test_install.sh builds them against the installed package too.
file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/docs/examples/*.c)
if(PKV_FUZZ)
    set(sources)
endif()
foreach(source ${sources})
    get_filename_component(stem ${source} NAME_WE)
    add_executable(example_${stem} ${source})
    pkv_target_defaults(example_${stem})
    set_target_properties(example_${stem} PROPERTIES INCLUDE_DIRECTORIES ""
        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
    target_link_libraries(example_${stem} PRIVATE pivotkv_static)
    add_test(NAME cli.example_${stem} COMMAND example_${stem})
    set_tests_properties(cli.example_${stem} PROPERTIES LABELS cli TIMEOUT ${PKV_TEST_TIMEOUT})
endforeach()
