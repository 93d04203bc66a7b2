# For Doxygen: among the links of a page in Markdown, keeps those to drawings, other sites and the guides, which are in
# the reference. The others become their text.
s/\]\(((\.\.\/)?(kv-)?guide\.md)/]<<\1/g
s/\]\(drawings\/([^)#]*\.svg)/]<<\1/g
s/\]\((https?:)/]<<\1/g
s/\[([^][]*)\]\([^)]*\)/\1/g
s/\]<</](/g
