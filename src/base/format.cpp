// What all of libfmt's formatting into memory ends in has another mangled name with Clang than with GCC, which Debian's
// libfmt is compiled by: a build by Clang has its own, once, and every other file needs <fmt/core.h> only.
#ifdef __clang__
#include <fmt/format.h>

template void fmt::detail::vformat_to<char>(buffer<char>&, basic_string_view<char>,
                                            basic_format_args<buffer_context<type_identity_t<char>>>, locale_ref);
#endif
