// SPDX-License-Identifier: Apache-2.0
// c = a + b for 4096 elements; each of 32 compute tiles owns 128 of them.

#all = affine_set<(d0) : (d0 >= 0, -d0 + 4095 >= 0)>
#tile = affine_set<(d0) : (d0 >= 0, -d0 + 127 >= 0)>
#order = affine_map<(d0) -> (d0)>

module {
  func.func @vector_add(%a: index, %b: index, %c: index) attributes {grid = [32]} {
    %size = arith.constant 128 : index
    %id = ktdp.get_compute_tile_id : index
    %start = arith.muli %id, %size : index
    %A = ktdp.construct_memory_view %a, sizes: [4096], strides: [1] {coordinate_set = #all, memory_space = #ktdp.memory_space<global>} : memref<4096xf16>
    %B = ktdp.construct_memory_view %b, sizes: [4096], strides: [1] {coordinate_set = #all, memory_space = #ktdp.memory_space<global>} : memref<4096xf16>
    %C = ktdp.construct_memory_view %c, sizes: [4096], strides: [1] {coordinate_set = #all, memory_space = #ktdp.memory_space<global>} : memref<4096xf16>
    %at = ktdp.construct_access_tile %A[%start] {access_tile_set = #tile, access_tile_order = #order} : memref<4096xf16> -> <128xindex>
    %bt = ktdp.construct_access_tile %B[%start] {access_tile_set = #tile, access_tile_order = #order} : memref<4096xf16> -> <128xindex>
    %ct = ktdp.construct_access_tile %C[%start] {access_tile_set = #tile, access_tile_order = #order} : memref<4096xf16> -> <128xindex>
    %x = ktdp.load %at : <128xindex> -> tensor<128xf16>
    %y = ktdp.load %bt : <128xindex> -> tensor<128xf16>
    %z = arith.addf %x, %y : tensor<128xf16>
    ktdp.store %z, %ct : tensor<128xf16>, <128xindex>
    return
  }
}
