// Does not compile: both ends of a transfer have the same element type, and every count is in elements of it.
// expect: no known conversion|cannot convert|could not convert|no matching|no viable
#include <verbena/typed.hpp>

using namespace verbena;

Status read_vector(typed::Link& link, typed::Segment<double>& vector, const rdma::Window& window) {
  const auto bytes = typed::RemoteSegment<const std::byte>::of(window, 0, 100);
  const auto doubles = typed::RemoteSegment<const double>::of(window, 0, 100);
  if (!bytes || !doubles) return Status::kOutOfRange;
#ifdef WRONG
  return link.read(vector, *bytes);
#else
  return link.read(vector, *doubles);
#endif
}
