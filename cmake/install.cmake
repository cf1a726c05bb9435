# Headers, both libraries, the binary, pkg-config and CMake package.
include(CMakePackageConfigHelpers)
if(TARGET pivotkv)
    install(TARGETS pivotkv RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(TARGETS pivotkv_static pivotkv_shared EXPORT pivotkv-targets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/pivotkv DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_BINARY_DIR}/include/pivotkv/version.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/pivotkv)
# Relative to itself: the prefix may be chosen at install time.
file(RELATIVE_PATH PKV_PC_TO_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/pivotkv.pc.in ${PROJECT_BINARY_DIR}/pivotkv.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/pivotkv.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
set(PKV_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/pivotkv)
install(EXPORT pivotkv-targets NAMESPACE pivotkv:: DESTINATION ${PKV_CMAKE_DIR})
configure_package_config_file(cmake/pivotkv-config.cmake.in ${PROJECT_BINARY_DIR}/pivotkv-config.cmake
    INSTALL_DESTINATION ${PKV_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/pivotkv-config-version.cmake
    COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/pivotkv-config.cmake
    ${PROJECT_BINARY_DIR}/pivotkv-config-version.cmake DESTINATION ${PKV_CMAKE_DIR})
