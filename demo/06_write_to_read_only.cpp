// Does not compile: what may only be read is a RemoteSegment of const elements, as a pointer to const. (Where the type
// claims more than the peer gave, the library refuses before anything is posted, and the connection lives on.)
// expect: no matching|could not convert|no known conversion|no viable|cannot convert
#include <verbena/typed.hpp>

using namespace verbena;

Status update(typed::Link& link, typed::Segment<std::uint64_t>& word, typed::RemoteSegment<const std::uint64_t> table) {
#ifdef WRONG
  return link.write(word, table);
#else
  return link.read(word, table);
#endif
}
