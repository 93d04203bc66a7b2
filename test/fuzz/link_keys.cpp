// Files of keys, whatever is in them.
#include "input.hpp"
#include "link/keys.hpp"

#include <string>
#include <string_view>

namespace verbena::fuzz::link_keys {
namespace {

using namespace link;

void run(Bytes bytes) {
  const Tight copy(bytes);
  const std::string_view text(reinterpret_cast<const char*>(copy.bytes().data()), copy.bytes().size());
  const auto keys = Keys::parse(text, "file");
  if (!keys) {
    VERBENA_CHECK(keys.error().status() == Status::kBadArgument);
    VERBENA_CHECK(*keys.error().text() != '\0');
    return;
  }
  VERBENA_CHECK((*keys)->count() >= 1 && (*keys)->count() <= kMostKeys);
  const auto first = (*keys)->choose({});
  VERBENA_CHECK(first && (*keys)->find((*first)->name()) == *first);
  VERBENA_CHECK(is_key_name((*first)->name()));
  VERBENA_CHECK((*first)->secret().size() >= kMinSecretBytes && (*first)->secret().size() <= kMaxSecretBytes);
}

}  // namespace
}  // namespace verbena::fuzz::link_keys

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  verbena::fuzz::link_keys::run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
