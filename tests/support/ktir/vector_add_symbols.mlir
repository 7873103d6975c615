// SPDX-License-Identifier: Apache-2.0
// c = a + b for n elements on four compute tiles. Each takes its share, a multiple of 64 except for the last; the tiles
// have dynamic sizes, and n is a runtime argument of at most 4096.

#all = affine_set<(d0) : (d0 >= 0, -d0 + 4095 >= 0)>
#some = affine_set<(d0)[s0] : (d0 >= 0, -d0 + s0 - 1 >= 0)>
#order = affine_map<(d0) -> (d0)>

func.func @vector_add_symbols(%a: index, %b: index, %c: index, %length: !ktdp.runtime_arg<index, granularity = 4, upperbound = 4096>)
    attributes {grid = [4 : i64]} {
  %zero = arith.constant 0 : index
  %most = arith.constant 1024 : index
  %id = ktdp.get_compute_tile_id : index
  %n = ktdp.runtime_arg_extract value from %length : !ktdp.runtime_arg<index, granularity = 4, upperbound = 4096> -> index
  %start = arith.muli %id, %most : index
  %left = arith.subi %n, %start : index
  %positive = arith.maxsi %left, %zero : index
  %count = arith.minsi %positive, %most : index
  %A = ktdp.construct_memory_view %a, sizes: [4096], strides: [1] {coordinate_set = #all, memory_space = #ktdp.memory_space<global>} : memref<4096xf16>
  %B = ktdp.construct_memory_view %b, sizes: [4096], strides: [1] {coordinate_set = #all, memory_space = #ktdp.memory_space<global>} : memref<4096xf16>
  %C = ktdp.construct_memory_view %c, sizes: [4096], strides: [1] {coordinate_set = #all, memory_space = #ktdp.memory_space<global>} : memref<4096xf16>
  %at = ktdp.construct_access_tile %A[%start] symbols(%count) {access_tile_set = #some, access_tile_order = #order} : memref<4096xf16> -> <?xindex>
  %bt = ktdp.construct_access_tile %B[%start] symbols(%count) {access_tile_set = #some, access_tile_order = #order} : memref<4096xf16> -> <?xindex>
  %ct = ktdp.construct_access_tile %C[%start] symbols(%count) {access_tile_set = #some, access_tile_order = #order} : memref<4096xf16> -> <?xindex>
  %x = ktdp.load %at : <?xindex> -> tensor<?xf16>
  %y = ktdp.load %bt : <?xindex> -> tensor<?xf16>
  %z = arith.addf %x, %y : tensor<?xf16>
  ktdp.store %z, %ct : tensor<?xf16>, <?xindex>
  return
}
