# SPDX-License-Identifier: Apache-2.0
#
# Library, headers, CMake package and lien.pc. lien.pc finds its prefix from its own place, so
# an installed tree may be moved.

install(
    TARGETS lien
    EXPORT LienTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(
    DIRECTORY core/include/lien
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    FILES_MATCHING
    PATTERN "*.h")

set(lieni_config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Lien)
install(
    EXPORT LienTargets
    NAMESPACE Lien::
    DESTINATION ${lieni_config_dir})
configure_package_config_file(cmake/LienConfig.cmake.in LienConfig.cmake
                              INSTALL_DESTINATION ${lieni_config_dir})
write_basic_package_version_file(LienConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/LienConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/LienConfigVersion.cmake
        DESTINATION ${lieni_config_dir})

if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
    set(lieni_pc_prefix ${CMAKE_INSTALL_PREFIX})
    set(lieni_pc_libdir ${CMAKE_INSTALL_LIBDIR})
else()
    file(RELATIVE_PATH lieni_pc_up /root/${CMAKE_INSTALL_LIBDIR}/pkgconfig /root)
    string(REGEX REPLACE "/$" "" lieni_pc_up "${lieni_pc_up}")
    set(lieni_pc_prefix "\${pcfiledir}/${lieni_pc_up}")
    set(lieni_pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
endif()
if(IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
    set(lieni_pc_includedir ${CMAKE_INSTALL_INCLUDEDIR})
else()
    set(lieni_pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
configure_file(cmake/lien.pc.in lien.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/lien.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
