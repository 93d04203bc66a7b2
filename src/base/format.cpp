// Clang mangles the name of libfmt's function for formatting into memory differently from GCC, which compiled Debian's
// libfmt. A build by Clang defines it here, once, so that every other file needs only <fmt/core.h>.
#ifdef __clang__
#include <fmt/format.h>

template void fmt::detail::vformat_to<char>(buffer<char>&, basic_string_view<char>,
                                            basic_format_args<buffer_context<type_identity_t<char>>>, locale_ref);
#endif
