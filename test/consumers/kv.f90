! The store of the module, server and clients in one program: what each call does to keys and values of other types and
! ranks, text, options, lists, errors. What the calls themselves do is tested in C.
module stores
  use verbena
  use, intrinsic :: iso_c_binding
  implicit none
  integer(c_int), parameter :: PATIENCE_MS = 20000
contains
  subroutine must(code, what)
    integer(c_int), intent(in) :: code
    character(len=*), intent(in) :: what
    call check(code == KV_OK, what//': '//kv_error_text(code)//'; '//kv_error_detail())
  end subroutine
  subroutine check(is, what)
    logical, intent(in) :: is
    character(len=*), intent(in) :: what
    if (is) return
    print '(a)', what
    stop 1, quiet=.true.
  end subroutine

  subroutine check_defaults
    type(kv_client_options_t) :: of_client
    type(kv_server_options_t) :: of_server
    call kv_client_options_init(of_client)
    call check(of_client%depth == 32 .and. of_client%gid_index == -1 .and. of_client%lookup == KV_LOOKUP_AUTO, &
               'the client has other defaults')
    call check(of_client%buffer_bytes == 4194304 .and. of_client%known_locations == 4096, 'nor these')
    call check(of_client%device == '' .and. .not. allocated(of_client%allowed_uids), 'nor these')
    call kv_server_options_init(of_server)
    call check(of_server%port == KV_DEFAULT_PORT .and. of_server%memory_bytes == 1073741824, &
               'the server has other defaults')
    call check(of_server%pin_workers == 1 .and. of_server%client_leases == 4, 'nor these')
    call check(of_server%max_cells == 0, 'nor this')
    call check(of_server%grace_ms == 500 .and. .not. allocated(of_server%grants), 'nor these')
  end subroutine

  function serve(options) result(server)
    type(kv_server_options_t), intent(in) :: options
    type(kv_server_t) :: server
    server = kv_server_create(options)
    call check(c_associated(server%handle), 'kv_server_create: '//kv_error_detail())
    call check(kv_server_port(server) < 0, 'a port before the start')
    call must(kv_server_start(server), 'kv_server_start')
    call check(kv_server_start(server) == KV_ERR_BUSY, 'it can be started twice')
  end function

  ! Options that the server refuses or obeys.
  subroutine use_options(options)
    type(kv_server_options_t), intent(in) :: options
    type(kv_server_options_t) :: bad
    type(kv_server_t) :: server
    server = kv_server_create()
    call check(c_associated(server%handle), 'there is no server with the defaults')
    call kv_server_destroy(server)
    bad = options
    bad%workers = 65
    server = kv_server_create(bad)
    call check(kv_server_start(server) == KV_ERR_BAD_ARGUMENT, '65 workers are taken')
    call check(index(kv_error_detail(), 'workers') > 0, 'the detail is: '//kv_error_detail())
    call kv_server_destroy(server)
    bad = options
    bad%trusted_clients = 1
    server = kv_server_create(bad)
    call check(.not. c_associated(server%handle), 'trusted_clients is taken')
    call check(index(kv_error_detail(), 'trusted_clients was removed in 0.1') > 0, 'the detail is: '//kv_error_detail())
    bad = options
    allocate (bad%grants(1))
    bad%grants(1)%uid = 12345
    bad%grants(1)%rights = 8
    server = kv_server_create(bad)
    call check(.not. c_associated(server%handle), 'right 8 is taken')
    bad%grants(1)%rights = KV_RIGHT_READ + KV_RIGHT_WRITE + KV_RIGHT_ADMINISTER
    bad%grants(1)%prefix = repeat('p', KV_MAX_KEY_BYTES + 1)
    server = kv_server_create(bad)
    call check(.not. c_associated(server%handle), 'a prefix of 1025 bytes is taken')
    call check(index(kv_error_detail(), '1025') > 0, 'the detail is: '//kv_error_detail())
  end subroutine

  subroutine use_values(client)
    type(kv_client_t), intent(in) :: client
    integer(c_int32_t) :: matrix(3, 4), back(4), key(2) = [7, 9], scalar
    integer(c_int64_t) :: version, newer
    integer(c_size_t) :: length
    integer :: i
    matrix = reshape([(i, i=1, 12)], [3, 4])
    call must(kv_client_put(client, key, c_sizeof(key), matrix(2, :), 16_c_size_t), 'kv_client_put')
    length = c_sizeof(back)
    call must(kv_client_get(client, [7, 9], 8_c_size_t, back, length), 'kv_client_get')
    call check(length == 16 .and. all(back == [2, 5, 8, 11]), 'a row is not stored')
    length = c_sizeof(scalar)
    call check(kv_client_get(client, key, c_sizeof(key), scalar, length) == KV_ERR_BUFFER_TOO_SMALL, &
               'a row fits into a scalar')
    call check(length == 16, 'the length needed is not told')
    call must(kv_client_get_version(client, key, c_sizeof(key), matrix(3, :), length, version), 'kv_client_get_version')
    call check(all(matrix(3, :) == [2, 5, 8, 11]) .and. all(matrix(1, :) == [1, 4, 7, 10]), 'no row is read into')
    call must(kv_client_get_version(client, key, c_sizeof(key), back, length), 'kv_client_get_version')

    call must(kv_client_cas(client, key, c_sizeof(key), version, 5, 4_c_size_t, newer), 'kv_client_cas')
    call check(newer /= version, 'there is no new version')
    call check(kv_client_cas(client, key, c_sizeof(key), version, 6, 4_c_size_t, version) == KV_ERR_VERSION_MISMATCH, &
               'an old version is taken')
    call check(version == newer, 'the current version is not told')
    call must(kv_client_cas(client, key, c_sizeof(key), version, 6, 4_c_size_t), 'kv_client_cas')
    call must(kv_client_get(client, key, c_sizeof(key), scalar, length), 'kv_client_get')
    call check(scalar == 6 .and. length == 4, 'it is not replaced')
    call must(kv_client_delete(client, key, c_sizeof(key)), 'kv_client_delete')
    call check(kv_client_delete(client, key, c_sizeof(key)) == KV_ERR_NOT_FOUND, 'it is there')
    call check(kv_client_put(client, key, 0_c_size_t, 1, 4_c_size_t) == KV_ERR_BAD_KEY, 'an empty key is taken')
    call check(index(kv_error_text(KV_ERR_BAD_KEY), ' ') > 0, 'no text for a code')
  end subroutine

  subroutine use_prefixes(client)
    type(kv_client_t), intent(in) :: client
    integer, parameter :: kMany = 300
    type(kv_cursor_t) :: cursor
    type(kv_key_page_t), target :: page
    type(c_ptr) :: at
    character(kind=c_char), pointer :: key(:)
    character(len=20) :: name
    integer(c_size_t) :: next, length
    integer(c_int64_t) :: left_ms, erased
    integer :: i, listed(kMany)
    do i = 1, kMany
      write (name, '(a, i3.3, a)') 'prefix/', i, '/something'
      call must(kv_client_put_ttl(client, name, 20_c_size_t, i, 4_c_size_t, 3600000_c_int64_t), 'kv_client_put_ttl')
    end do
    call must(kv_client_get_ttl(client, name, 20_c_size_t, left_ms), 'kv_client_get_ttl')
    call check(left_ms > 0 .and. left_ms <= 3600000, 'another time is left')
    call check(kv_client_put_ttl(client, name, 20_c_size_t, i, 4_c_size_t, 0_c_int64_t) == KV_ERR_BAD_ARGUMENT, &
               'no time is enough')
    listed = 0
    do while (cursor%is_over == 0)
      call must(kv_client_keys(client, 'prefix/', 7_c_size_t, cursor, page), 'kv_client_keys')
      next = 0
      do
        at = kv_key_page_next(page, next, length)
        if (.not. c_associated(at)) exit
        call c_f_pointer(at, key, [length])
        call check(length == 20, 'another key is listed')
        read (key(8), '(i1)') i
        i = 100 * i + 10 * (iachar(key(9)) - iachar('0')) + iachar(key(10)) - iachar('0')
        listed(i) = listed(i) + 1
      end do
    end do
    call check(all(listed > 0), 'a key is not listed')
    call must(kv_client_flush(client, 'prefix/', 7_c_size_t, erased), 'kv_client_flush')
    call check(erased == kMany, 'another number of keys was erased')
    call must(kv_client_flush(client, 'prefix/', 7_c_size_t), 'kv_client_flush')
  end subroutine

  subroutine use_cells(client)
    type(kv_client_t), intent(in) :: client
    type(kv_cell_t) :: cell
    integer(c_int64_t) :: old
    call must(kv_client_cell_open(client, 'cell', 4_c_size_t, 40_c_int64_t, cell), 'kv_client_cell_open')
    call check(cell%is_new == 1, 'the cell was there')
    call must(kv_client_cell_fetch_add(client, cell, 2_c_int64_t, old), 'kv_client_cell_fetch_add')
    call check(old == 40, 'it was added to another number')
    call must(kv_client_cell_fetch_add(client, cell, -2_c_int64_t), 'kv_client_cell_fetch_add')
    call must(kv_client_cell_compare_swap(client, cell, 40_c_int64_t, -1_c_int64_t, old), 'kv_client_cell_compare_swap')
    call check(old == 40, 'another number was found')
    call must(kv_client_cell_read(client, cell, old), 'kv_client_cell_read')
    call check(old == -1, 'nothing was swapped')
    call check(kv_client_delete(client, 'cell', 4_c_size_t) == KV_ERR_WRONG_KIND, 'a cell is deleted')
  end subroutine

  subroutine use_items(client)
    type(kv_client_t), intent(in) :: client
    integer, parameter :: kMany = 100
    integer(c_int32_t), target :: keys(kMany), back(kMany)
    integer(c_int64_t), pointer :: values(:)
    type(kv_put_item_t) :: puts(kMany)
    type(kv_get_item_t) :: gets(kMany)
    type(c_ptr) :: memory
    integer :: i
    memory = kv_client_allocate(client, 8_c_size_t * kMany)
    call check(c_associated(memory), 'kv_client_allocate: '//kv_error_detail())
    call c_f_pointer(memory, values, [kMany])
    do i = 1, kMany
      keys(i) = 1000 + i
      values(i) = 3 * i
      puts(i)%key = c_loc(keys(i))
      puts(i)%klen = 4
      puts(i)%value = c_loc(values(i))
      puts(i)%vlen = 8
      gets(i)%key = c_loc(keys(i))
      gets(i)%klen = 4
      gets(i)%buf = c_loc(values(i))
      gets(i)%len = 8
    end do
    call must(kv_client_put_items(client, puts), 'kv_client_put_items')
    call check(all(puts%code == KV_OK) .and. all(puts%version > 0), 'an item is not put')
    call check(kv_client_put_items_ttl(client, puts, 0_c_int64_t) == KV_ERR_BAD_ARGUMENT, 'no time is enough for items')
    call check(all(puts%code == KV_ERR_BAD_ARGUMENT) .and. all(puts%version == 0), 'a refused item looks done')
    call must(kv_client_put_items_ttl(client, puts, 3600000_c_int64_t), 'kv_client_put_items_ttl')
    values = 0
    gets(kMany)%buf = c_loc(back(1))
    gets(kMany)%len = 4
    call check(kv_client_get_items(client, gets) == KV_ERR_BUFFER_TOO_SMALL, 'eight bytes fit into four')
    call check(gets(kMany)%code == KV_ERR_BUFFER_TOO_SMALL .and. gets(kMany)%len == 8, 'the item does not tell')
    call check(all(gets(:kMany - 1)%code == KV_OK) .and. all(gets%version == puts%version .or. gets%code /= KV_OK), &
               'an item is not got')
    call check(all(values(:kMany - 1) == [(3 * i, i=1, kMany - 1)]), 'other values are there')
  end subroutine

  subroutine use_lists(client)
    type(kv_client_t), intent(in) :: client
    character(kind=c_char, len=2), target :: keys(3) = ['k1', 'k2', 'k3']
    integer(c_int64_t), target :: values(3) = [11, 22, 33]
    type(c_ptr) :: to_keys(3), to_values(3)
    integer(c_size_t) :: lengths(3)
    integer :: i
    do i = 1, 3
      to_keys(i) = c_loc(keys(i))
      to_values(i) = c_loc(values(i))
    end do
    call must(kv_client_batch_put(client, to_keys(:2), [2_c_size_t, 2_c_size_t], to_values(:2), &
                                  [8_c_size_t, 8_c_size_t]), 'kv_client_batch_put')
    call check(kv_client_batch_put(client, to_keys, [2_c_size_t], to_values, lengths) == KV_ERR_BAD_ARGUMENT, &
               'one length is enough for three keys')
    values = 0
    lengths = 8
    call check(kv_client_batch_get(client, to_keys, [(2_c_size_t, i=1, 3)], to_values, lengths) == KV_ERR_NOT_FOUND, &
               'k3 is there')
    call check(all(lengths == [8, 8, -1]) .and. all(values(:2) == [11, 22]), 'other values are there')
    call check(kv_client_batch_get(client, to_keys(:1), [2_c_size_t], to_values, lengths) == KV_ERR_BAD_ARGUMENT, &
               'a list is longer than the others')
  end subroutine

  subroutine use_text(host, options)
    character(len=*), intent(in) :: host
    type(kv_client_options_t), intent(in) :: options
    type(kv_client_options_t) :: bad
    type(kv_client_t) :: store
    character(len=:), allocatable :: value
    character(len=16) :: key
    bad = options
    bad%depth = 1025
    call check(kv_open_with(host, CONN_MODE_CM, bad, store) == KV_ERR_BAD_ARGUMENT, 'a depth of 1025 is taken')
    call check(.not. c_associated(store%handle) .and. index(kv_error_detail(), 'depth') > 0, &
               'the detail is: '//kv_error_detail())
    call check(kv_open('no such host:1', store) /= KV_OK, 'there is such a host')
    call must(kv_open_with(host, CONN_MODE_CM, options, store), 'kv_open_with')
    key = 'greeting'
    call must(kv_set(store, key, ' hello '), 'kv_set')
    call must(kv_get(store, 'greeting', value), 'kv_get')
    call check(value == ' hello ' .and. len(value) == 7, 'blanks of a value are lost')
    call must(kv_set(store, key, ''), 'kv_set')
    call must(kv_get(store, key, value), 'kv_get')
    call check(len(value) == 0, 'an empty value is not empty')
    call check(kv_get(store, 'no such key', value) == KV_ERR_NOT_FOUND, 'there is such a key')
    call check(.not. allocated(value), 'it has a value')
    call must(kv_client_delete(store, 'greeting', 8_c_size_t), 'kv_client_delete')
    call must(kv_close(store), 'kv_close')
  end subroutine
end module stores

program kv
  use stores
  implicit none
  type(kv_server_options_t) :: options
  type(kv_server_t) :: server
  type(kv_client_options_t) :: client_options
  type(kv_client_t) :: client
  character(len=32) :: device, host

  call check_defaults
  call get_environment_variable('VERBENA_NIC', device)
  if (device == '') device = 'soft'
  call kv_server_options_init(options)
  options%device = device
  options%address = '127.0.0.1'
  options%port = 0
  options%memory_bytes = 16777216
  options%pin_workers = 0
  options%max_cells = 4
  options%allowed_uids = [12345, 12346]
  call use_options(options)
  server = serve(options)
  write (host, '(a, i0)') '127.0.0.1:', kv_server_port(server)

  call kv_client_options_init(client_options)
  client_options%device = device
  client_options%timeout_ms = PATIENCE_MS
  client = kv_client_create(CONN_MODE_CM)
  call must(kv_client_set_options(client, client_options), 'kv_client_set_options')
  call check(kv_client_connect_socket(client, '127.0.0.1', kv_server_port(server), '') == KV_ERR_BAD_ARGUMENT, &
             'it connects in another mode')
  call must(kv_client_connect(client, '127.0.0.1  ', kv_server_port(server)), 'kv_client_connect')
  call check(kv_client_set_options(client, client_options) == KV_ERR_BUSY, 'options of a connected client are set')
  call use_values(client)
  call use_prefixes(client)
  call use_cells(client)
  call use_items(client)
  call use_lists(client)
  call use_text(host, client_options)
  call must(kv_client_disconnect(client), 'kv_client_disconnect')
  call kv_client_destroy(client)
  call must(kv_server_stop(server), 'kv_server_stop')
  call kv_server_destroy(server)

  ! The other mode, in which the device is an argument. Both grants are for another user.
  options%mode = CONN_MODE_SOCKET
  options%allowed_uids = [12345]
  allocate (options%grants(2))
  options%grants(1)%uid = 12345
  options%grants(1)%rights = KV_RIGHT_READ
  options%grants(1)%prefix = 'public/'
  options%grants(2)%uid = 12345
  options%grants(2)%max_items = 10
  server = serve(options)
  client = kv_client_create(CONN_MODE_SOCKET)
  call must(kv_client_set_options(client, client_options), 'kv_client_set_options')
  call check(kv_client_connect_socket(client, '127.0.0.1', kv_server_port(server), 'no such device') /= KV_OK, &
             'there is such a device')
  call must(kv_client_connect_socket(client, '127.0.0.1', kv_server_port(server), device), 'kv_client_connect_socket')
  call must(kv_client_put(client, 'own', 3_c_size_t, 1, 4_c_size_t), 'kv_client_put')
  call kv_client_destroy(client)
  call kv_server_destroy(server)
end program kv
