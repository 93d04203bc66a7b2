// Does not compile (with warnings as errors): each call and each operation returns a status that must be looked at.
// expect: nodiscard|unused
#include <verbena/typed.hpp>

using namespace verbena;

std::expected<std::uint64_t, Status> counter(typed::Link& link, typed::Segment<std::uint64_t>& buffer,
                                             typed::RemoteSegment<const std::uint64_t> there) {
#ifdef WRONG
  link.read(buffer, there);
#else
  if (const Status status = link.read(buffer, there); status != Status::kOk) return std::unexpected(status);
#endif
  return buffer.get(0);
}
