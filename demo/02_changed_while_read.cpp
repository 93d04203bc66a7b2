// Does not compile: a write that is started takes its segment, and the writer who keeps it to fill it again is refused.
// expect: cannot bind rvalue reference|no matching
#include <verbena/typed.hpp>

using namespace verbena;

Status write_blocks(typed::Link& link, typed::Segment<char> buffer, std::span<const char> block,
                    typed::RemoteSegment<char> there) {
  if (const Status copied = buffer.copy_from(block); copied != Status::kOk) return copied;
#ifdef WRONG
  auto writing = link.start_write(buffer, there);
  if (const Status copied = buffer.copy_from(block); copied != Status::kOk) return copied;
  return writing.wait();
#else
  // The segment comes back with the completion, and can be filled again.
  auto [status, back] = link.start_write(std::move(buffer), there).finish();
  return status == Status::kOk ? back.copy_from(block) : status;
#endif
}
